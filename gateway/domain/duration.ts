const UNIT_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** `500ms`, `10s`, `5m`, `24h`, `30d`. */
export const DURATION_PATTERN = /^[1-9]\d{0,8}(?:ms|s|m|h|d)$/;

/** The rest of a sentence that begins with the name of the value. */
export const INVALID_DURATION = 'must be a duration such as 500ms, 10s, 5m, 24h or 30d';

export function parseDurationMs(text: string): number {
  const [, digits, unit] = /^(\d+)(ms|s|m|h|d)$/.exec(text) ?? [];
  return Number(digits) * UNIT_MS[unit as keyof typeof UNIT_MS];
}
