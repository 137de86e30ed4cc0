import { parseArgs } from 'node:util';
import { generator, keep, MUTATIONS, missed, textOf, verify } from './mutations.ts';

/**
 * Tampers with exports of the log in every way it knows, and checks that each is found out and the right entry named; and that
 * nothing is found in exports that were left alone.
 *
 *   npx tsx test/audit/mutation-campaign.ts --mutations 100000 [--seed 1]
 */
const { values } = parseArgs({
  options: {
    mutations: { type: 'string', default: '100000' },
    seed: { type: 'string', default: String(Date.now() % 1e9) },
  },
});
const wanted = Number(values.mutations);
const random = generator(Number(values.seed));
const names = Object.keys(MUTATIONS);
const found: string[] = [];
let done = 0;
let clean = 0;
console.log(`${wanted} mutations; seed ${values.seed}`);
while (done < wanted && found.length < 20) {
  const kept = keep(1 + Math.floor(random() * 120), 1 + Math.floor(random() * 60), random);
  const older = [...kept.checkpoints.values()];
  const checkpoint = older[Math.floor(random() * older.length)];
  const verdict = verify(Buffer.from(textOf(kept.lines)), { key: kept.key.verifier, checkpoint }, random);
  if (!verdict.isGood) found.push(`false alarm: ${JSON.stringify(verdict)}`);
  clean += 1;
  for (let i = 0; i < 50; i++, done++) {
    const wrong = missed(kept, names[done % names.length] ?? '', random);
    if (wrong !== undefined) found.push(wrong);
  }
  if (done % 5_000 === 0) process.stdout.write(`${done} mutations, ${clean} clean exports, ${found.length} wrong\n`);
}
for (const wrong of found) console.log(wrong);
console.log(
  `${done} mutations and ${clean} clean exports: ${found.length === 0 ? 'all told apart' : 'NOT all told apart'}`,
);
process.exitCode = found.length === 0 ? 0 : 1;
