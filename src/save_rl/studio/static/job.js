// A job of the server: its progress as it goes on, and how to cancel it.
import { postJSON } from "./app.js";

/** Follow a job; onchange(job) for every change. Resolves with the job when it is over. */
export function follow(job, onchange) {
  return new Promise((done, fail) => {
    onchange?.(job);
    if (isOver(job)) { done(job); return; }
    const source = new EventSource(`/api/jobs/${job.job}/events`);
    let lost = 0;
    source.onmessage = (event) => {
      lost = 0;
      const now = JSON.parse(event.data);
      onchange?.(now);
      if (isOver(now)) { source.close(); done(now); }
    };
    source.onerror = () => {
      lost += 1;
      if (source.readyState === EventSource.CLOSED || lost > 5) {
        source.close();
        fail(new Error("The server does not answer; is save-rl studio still running?"));
      }
    };
  });
}

export const isOver = (job) => ["done", "failed", "cancelled"].includes(job.state);

export const cancel = (job) => postJSON(`/api/jobs/${job.job}/cancel`);

/** A job's progress in words. */
export function progressText(job) {
  if (job.state === "waiting") return job.ahead > 0 ? `waiting for ${job.ahead} before it` : "waiting";
  if (job.do === "open") return "loading the agent";
  const search = job.simulations > 0 && job.budget > 1 ? `simulation ${job.simulations} of ${job.budget}` : "";
  if (job.do === "search") return search || "searching";
  return [`step ${job.done + 1}`, search].filter(Boolean).join(", ");
}

/** Its share, from 0 to 1; null if that is unknown. */
export function progressShare(job) {
  if (job.do === "search" && job.total) return Math.min(1, job.simulations / job.total);
  return null;
}
