import { expect, it } from 'vitest';
import { MigrationProgress } from '../../gateway/ledger/migration-progress.ts';

function startProgress() {
  const lines: string[] = [];
  const clock = { now: 0 };
  const progress = new MigrationProgress(
    '0021_x',
    (line) => lines.push(line),
    () => clock.now,
  );
  return { lines, clock, progress };
}

it('reports after the first batch, then at most every two seconds, and at the end', () => {
  const { lines, clock, progress } = startProgress();
  for (let moved = 50_000; moved <= 1_000_000; moved += 50_000) {
    progress.report({ moved, total: 1_000_000 });
    clock.now += 500;
  }
  progress.finish();
  expect(lines).toEqual([
    'Migration 0021_x: 50,000 of about 1,000,000 rows (5 %).',
    'Migration 0021_x: 250,000 of about 1,000,000 rows (25 %), about 8 s left.',
    'Migration 0021_x: 450,000 of about 1,000,000 rows (45 %), about 6 s left.',
    'Migration 0021_x: 650,000 of about 1,000,000 rows (65 %), about 4 s left.',
    'Migration 0021_x: 850,000 of about 1,000,000 rows (85 %), about 2 s left.',
    'Migration 0021_x is complete.',
  ]);
});

it('measures the speed from its own first report, so that a resumed migration estimates the time well', () => {
  const { lines, clock, progress } = startProgress();
  progress.report({ moved: 900_000, total: 1_000_000 });
  clock.now = 2_000;
  progress.report({ moved: 901_000, total: 1_000_000 });
  expect(lines.at(-1)).toBe('Migration 0021_x: 901,000 of about 1,000,000 rows (90 %), about 4 min left.');
});

it('does not promise more than it knows: more rows than were counted, or no count', () => {
  const { lines, clock, progress } = startProgress();
  progress.report({ moved: 12, total: 10 });
  clock.now = 2_000;
  progress.report({ moved: 1_500, total: undefined });
  expect(lines).toEqual(['Migration 0021_x: 12 of about 12 rows (100 %).', 'Migration 0021_x: 1,500 rows.']);
});

it('is silent about a migration that moved nothing', () => {
  const { lines, progress } = startProgress();
  progress.finish();
  expect(lines).toEqual([]);
});
