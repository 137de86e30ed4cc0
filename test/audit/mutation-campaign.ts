import { parseArgs } from 'node:util';
import { createRandom } from '../support/random.ts';
import { buildSignedExport, findMissedDetection, joinLines, MUTATIONS, verifyInChunks } from './mutations.ts';

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
const targetMutations = Number(values.mutations);
const random = createRandom(Number(values.seed));
const names = Object.keys(MUTATIONS);
const wrongVerdicts: string[] = [];
let done = 0;
let cleanExports = 0;
console.log(`${targetMutations} mutations; seed ${values.seed}`);
while (done < targetMutations && wrongVerdicts.length < 20) {
  const kept = buildSignedExport(1 + Math.floor(random() * 120), 1 + Math.floor(random() * 60), random);
  const older = [...kept.checkpoints.values()];
  const checkpoint = older[Math.floor(random() * older.length)];
  const verdict = verifyInChunks(Buffer.from(joinLines(kept.lines)), { key: kept.key.verifier, checkpoint }, random);
  if (!verdict.isGood) wrongVerdicts.push(`false alarm: ${JSON.stringify(verdict)}`);
  cleanExports += 1;
  for (let i = 0; i < 50; i++, done++) {
    const wrong = findMissedDetection(kept, names[done % names.length] ?? '', random);
    if (wrong !== undefined) wrongVerdicts.push(wrong);
  }
  if (done % 5_000 === 0)
    process.stdout.write(`${done} mutations, ${cleanExports} clean exports, ${wrongVerdicts.length} wrong\n`);
}
for (const wrong of wrongVerdicts) console.log(wrong);
console.log(
  `${done} mutations and ${cleanExports} clean exports: ${wrongVerdicts.length === 0 ? 'all told apart' : 'NOT all told apart'}`,
);
process.exitCode = wrongVerdicts.length === 0 ? 0 : 1;
