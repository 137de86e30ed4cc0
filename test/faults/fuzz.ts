import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { parseStrictJson, StrictJsonError } from '../../gateway/domain/strict-json.ts';
import { compilePolicies } from '../../gateway/policy/load-policies.ts';

/**
 * Feeds mutated bytes to the strict JSON parser and the policy loader. The parser may throw only `StrictJsonError`, the loader
 * nothing. The slowest input is printed, so that a hang is visible.
 *
 *   npm run fuzz -- --inputs 100000 [--seed 1]
 */
const { values } = parseArgs({
  options: { inputs: { type: 'string', default: '20000' }, seed: { type: 'string', default: '1' } },
});
const inputs = Number(values.inputs);
const random = createRandom(Number(values.seed));

const JSON_SEEDS = [
  '{"id":"ch_1","amount":1200,"nested":{"list":[1,2.5,-3e10,true,null,"\\u00e9\\n"]}}',
  '[[[[[[[[]]]]]]]]',
  '{"a":9007199254740993,"__proto__":1,"a":2}',
  '"\\ud83d\\ude00 \\ud800"',
];
const TOKENS = [
  '{',
  '}',
  '[',
  ']',
  ':',
  ',',
  '"',
  '\\',
  '\\u',
  '0',
  '1e400',
  '-',
  '.',
  'null',
  '${',
  '&a ',
  '*a',
  '!!x',
  '---\n',
  '\n',
  '  ',
  '|',
  '>',
  '#',
  '\0',
  '\ufeff',
  'é',
  '\ud800',
  '__proto__',
  '(a+)+$',
  'x'.repeat(50),
];
const POLICY = readFileSync('policies/demo.yaml', 'utf8');
const ENV = {
  ONCEGATE_DEMO_URL: 'http://127.0.0.1:1/demo',
  ONCEGATE_DEMO_TOKEN: 'token-token',
  ONCEGATE_DEMO_AGENT_SHA256: '0'.repeat(64),
  ONCEGATE_DEMO_ADMIN_SHA256: '1'.repeat(64),
};

// Warms up the loader: code that V8 has not optimized yet is slow for any input.
for (let i = 0; i < 30; i += 1) compilePolicies([{ name: 'p.yaml', file: 'p.yaml', bytes: Buffer.from(POLICY) }], ENV);

let slowest = { ms: 0, target: '', input: '' };
let accepted = 0;
for (let i = 0; i < inputs; i += 1) {
  // A policy takes milliseconds to compile, so only a tenth of the inputs goes to the loader.
  if (i % 10 === 0) {
    const text = mutate(cutPolicy(POLICY), 1 + Math.floor(random() * 6));
    recordSlowest('loader', text, () => {
      if (compilePolicies([{ name: 'p.yaml', file: 'p.yaml', bytes: Buffer.from(text) }], ENV).ok) accepted += 1;
    });
  } else {
    const text = mutate(JSON_SEEDS[Math.floor(random() * JSON_SEEDS.length)] ?? '', 1 + Math.floor(random() * 8));
    recordSlowest('parser', text, () => {
      try {
        parseStrictJson(Buffer.from(text));
        accepted += 1;
      } catch (error) {
        if (!(error instanceof StrictJsonError)) throw error;
      }
    });
  }
  if (i % 5_000 === 0 && i > 0)
    console.log(`${i} of ${inputs}, slowest so far ${slowest.ms.toFixed(1)} ms (${slowest.target})`);
}
console.log(
  `${inputs} inputs, ${accepted} accepted, none crashed; slowest ${slowest.ms.toFixed(1)} ms of processor time (${slowest.target})`,
);
if (slowest.ms > 50) console.log(JSON.stringify(slowest.input.slice(0, 2_000)));

/**
 * Measures processor time, because on a busy machine wall time looks like a hang. A slow input is measured again, because
 * the garbage collector may have run.
 */
function recordSlowest(target: string, input: string, work: () => void): void {
  let ms = measureCpuMs(work);
  for (let repeats = 0; repeats < 3 && ms > 25; repeats += 1) ms = Math.min(ms, measureCpuMs(work));
  if (ms > slowest.ms) slowest = { ms, target, input };
}

function measureCpuMs(work: () => void): number {
  const before = process.cpuUsage();
  work();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}

/** Returns some lines of the policy. Whole policies are slow to compile and differ little. */
function cutPolicy(policy: string): string {
  const lines = policy.split('\n');
  const from = Math.floor(random() * lines.length);
  return random() < 0.1
    ? policy
    : lines
        .slice(0, 20)
        .concat(lines.slice(from, from + 40))
        .join('\n');
}

function mutate(text: string, times: number): string {
  let current = text;
  for (let i = 0; i < times; i += 1) {
    const at = Math.floor(random() * (current.length + 1));
    const token = TOKENS[Math.floor(random() * TOKENS.length)] ?? '';
    const kind = random();
    if (kind < 0.3) current = current.slice(0, at) + token + current.slice(at);
    else if (kind < 0.5) current = current.slice(0, at) + current.slice(at + Math.floor(random() * 10));
    else if (kind < 0.7)
      current = current.slice(0, at) + String.fromCharCode(Math.floor(random() * 256)) + current.slice(at + 1);
    else if (kind < 0.85)
      current = current.slice(0, at) + current.slice(at, at + 30).repeat(2) + current.slice(at + 30);
    else current = current.slice(0, at);
  }
  return current;
}

function createRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 4294967296;
  };
}
