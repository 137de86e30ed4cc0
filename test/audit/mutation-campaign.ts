import { parseArgs } from 'node:util';
import { createRandom } from '../support/random.ts';
import { buildSignedExport, findMissedDetection, joinLines, MUTATIONS, verifyInChunks } from './mutations.ts';

/**
 * Tampers with exports of the audit log in every way of `MUTATIONS`. Verification must detect each change and name the right
 * entry, and it must accept every unchanged export.
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
  const signedExport = buildSignedExport(1 + Math.floor(random() * 120), 1 + Math.floor(random() * 60), random);
  const checkpoints = [...signedExport.checkpoints.values()];
  const checkpoint = checkpoints[Math.floor(random() * checkpoints.length)];
  const verdict = verifyInChunks(
    Buffer.from(joinLines(signedExport.lines)),
    { key: signedExport.key.verifier, checkpoint },
    random,
  );
  if (!verdict.isGood) wrongVerdicts.push(`false alarm: ${JSON.stringify(verdict)}`);
  cleanExports += 1;
  for (let i = 0; i < 50; i++, done++) {
    const wrong = findMissedDetection(signedExport, names[done % names.length] ?? '', random);
    if (wrong !== undefined) wrongVerdicts.push(wrong);
  }
  if (done % 5_000 === 0)
    process.stdout.write(`${done} mutations, ${cleanExports} clean exports, ${wrongVerdicts.length} wrong\n`);
}
for (const wrong of wrongVerdicts) console.log(wrong);
console.log(
  `${done} mutations and ${cleanExports} clean exports: ${wrongVerdicts.length === 0 ? 'every verdict is right' : 'some verdicts are WRONG'}`,
);
process.exitCode = wrongVerdicts.length === 0 ? 0 : 1;
