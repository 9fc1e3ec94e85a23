// How long to wait before the next try: random, and longer after every failure, so that all browsers that lost a
// restarted server do not come back at the same moment.

export const LEAST_MS = 500;
export const MOST_MS = 15_000;

/** Milliseconds before the next try after `failures` failures in a row (1 for the first). */
export function delayAfter(failures: number, random: () => number = Math.random): number {
  const ceiling = Math.min(MOST_MS, 1000 * 2 ** Math.min(failures, 10));
  return Math.round(LEAST_MS + random() * (ceiling - LEAST_MS));
}
