const UNITS = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1_000],
] as const;

/** `1 file`, `3 files` */
export function formatCount(count: number, thing: string): string {
  return `${count} ${thing}${count === 1 ? '' : 's'}`;
}

/** `42s`, `5m`, `3h`, `12d`: as policies write durations, rounded down. */
export function formatDuration(ms: number): string {
  const [unit, size] = UNITS.find(([, size]) => ms >= size) ?? ['s', 1_000];
  return `${Math.max(0, Math.floor(ms / size))}${unit}`;
}
