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

it('executeCall takes its steps in the order in which they happen', () => {
  const source = readFileSync('gateway/flow/calls/execute-call.ts', 'utf8');
  const body = source.slice(source.indexOf('export async function executeCall('));
  const calls = [
    'parseCall',
    'findReplay',
    'decide',
    'identify',
    'prepare',
    'claimCall',
    'dispatch.start',
    'awaitResult',
  ];
  const positions = calls.map((call) => body.slice(0, body.indexOf('\n}\n')).indexOf(`${call}(`));
  expect(positions).not.toContain(-1);
  expect(positions).toEqual([...positions].sort((a, b) => a - b));
});
