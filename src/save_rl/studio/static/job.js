// A job of the server: its progress as it goes on, and how to cancel it.
import { GONE, getJSON, postJSON } from "./app.js";

const SLOWLY = 1500;  // milliseconds between two questions of a page that nobody sees
const PATIENCE = 5;  // questions without an answer

/** Follow a job; onchange(job) for every change. Resolves with the job when it is over.
 *  Only a visible page keeps a stream open: browsers allow six connections to a server, for all its
 *  pages together. */
export function follow(job, onchange) {
  return new Promise((done, fail) => {
    let source = null, timer = null, lost = 0;
    const stop = () => {
      source?.close();
      clearTimeout(timer);
      source = timer = null;
    };
    const end = (finish, value) => {
      stop();
      document.removeEventListener("visibilitychange", listen);
      finish(value);
    };
    const hear = (now) => {
      lost = 0;
      onchange?.(now);
      if (isOver(now)) end(done, now);
    };
    const miss = (error) => {
      lost += 1;
      if (error.message !== GONE || lost > PATIENCE) end(fail, error);
    };
    const ask = async () => {
      try { hear(await getJSON(`/api/jobs/${job.job}`)); } catch (error) { miss(error); }
      if (timer !== null) timer = setTimeout(ask, SLOWLY);
    };
    function listen() {
      stop();
      if (document.hidden) { timer = setTimeout(ask, SLOWLY); return; }
      source = new EventSource(`/api/jobs/${job.job}/events`);
      source.onmessage = (event) => hear(JSON.parse(event.data));
      source.onerror = () => {  // it tries again by itself, unless the server has refused
        if (source?.readyState === EventSource.CLOSED) timer = setTimeout(ask, 0);
        else miss(new Error(GONE));
      };
    }
    onchange?.(job);
    if (isOver(job)) { done(job); return; }
    document.addEventListener("visibilitychange", listen);
    listen();
  });
}

export const isOver = (job) => ["done", "failed", "cancelled"].includes(job.state);

export const cancel = (job) => postJSON(`/api/jobs/${job.job}/cancel`);

/** A job's progress in words. */
export function progressText(job) {
  if (job.state === "waiting") return job.ahead > 0 ? `waiting for ${job.ahead} before it` : "waiting";
  if (job.do === "open") return "Loading the agent";
  const search = job.simulations > 0 && job.budget > 1 ? `simulation ${job.simulations} of ${job.budget}` : "";
  if (job.do === "search") return search || "searching";
  return [`step ${job.done + 1}`, search].filter(Boolean).join(", ");
}

/** Its share, from 0 to 1; null if that is unknown. */
export function progressShare(job) {
  if (job.do === "search" && job.total) return Math.min(1, job.simulations / job.total);
  return null;
}
