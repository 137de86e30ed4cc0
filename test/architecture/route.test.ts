import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';

const STEP = /^\d+\. `(\w+)` in `([^`]+)`/gm;
const steps = [...readFileSync('CONTRIBUTING.md', 'utf8').matchAll(STEP)].map(([, name = '', file = '']) => ({
  name,
  file,
}));

it('CONTRIBUTING.md lists the route of a call', () => {
  expect(steps.length).toBeGreaterThan(8);
});

it.each(steps)('$file exports $name', ({ name, file }) => {
  expect(readFileSync(file, 'utf8')).toMatch(new RegExp(`^export (async )?(function|class) ${name}\\b`, 'm'));
});
