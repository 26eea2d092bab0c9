// Names of metrics and axes as people read them.

export const AXES = {
  episodes: "Episodes",
  env_steps: "Real steps",
  simulator_steps: "Simulator steps",
  time_s: "Wall time",
};

const METRICS = {
  return_mean: "Reward, mean", return_min: "Reward, lowest", return_max: "Reward, highest",
  test_return: "Test reward", loss_q: "Loss of Q-learning, L_Q", loss_a: "Amortization loss, L_A",
  epsilon: "Exploration, ε", beta_q: "Weight of L_Q, β_Q", beta_a: "Weight of L_A, β_A",
  episode_length: "Length of an episode", level: "Level of the curriculum", level_return: "Reward on that level",
  updates: "Updates", restarts: "Faults of the simulator", explored: "Actions tried at the root",
  changed: "Share of actions that search changed",
};

export const metricName = (metric) => METRICS[metric] ?? metric.replaceAll("_", " ");

/** The metrics among the columns of metrics.csv, the most telling ones first. */
export function metricsOf(columns) {
  const known = Object.keys(METRICS);
  const rank = (name) => (known.includes(name) ? known.indexOf(name) : known.length);
  return columns.filter((name) => name !== "seed" && !(name in AXES)).sort((a, b) => rank(a) - rank(b));
}
