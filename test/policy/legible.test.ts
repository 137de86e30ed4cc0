// biome-ignore-all lint/suspicious/noTemplateCurlyInString: templates are what is tested
import { expect, test } from 'vitest';
import { compileInputSchema } from '../../gateway/policy/compile/compile-input-schema.ts';
import { compileLock, LOCK_VARIABLES } from '../../gateway/policy/compile/compile-locks.ts';
import { compileCondition, compileNumber } from '../../gateway/policy/expressions/compile-expression.ts';
import { compileText } from '../../gateway/policy/expressions/compile-template.ts';

const reportFault = (message: string): never => {
  throw new Error(message);
};
const options = { variables: ['args'] as const, reportFault };
const args = { x: null, l: ['a'] };
/** At every place, so that wherever it is cut it is cut in two, once with and once without the space before. */
const smiles = (before: string) => before + '😀'.repeat(300);

/** A refusal is logged, and the log refuses half a character. */
test.each<[string, (text: string) => unknown]>([
  ['a condition', (text) => compileCondition(`args.x == args.l || args.nope == "${text}"`, options)({ args })],
  ['what is no condition', (text) => compileCondition(`"${text}" == "" ? args.x : args.l`, options)({ args })],
  ['what is no number', (text) => compileNumber(`"${text}" == "" ? args.x : args.l`, options)({ args })],
  ['a template', (text) => compileText(`\${args.x} ${text}`, options)({ args })],
  [
    'a lock',
    (text) =>
      compileLock(`\${args.x} ${text}`, { variables: LOCK_VARIABLES, reportFault }).keys({
        args,
        agent: 'a',
        saga: null,
        run: null,
      }),
  ],
  [
    'a schema',
    (text) => {
      const compiled = compileInputSchema({ properties: { l: { enum: [text, text, text, text] } } });
      throw new Error('check' in compiled ? String(compiled.check(args)) : 'no check');
    },
  ],
])('what is said of %s is never cut in the middle of a character', (_, refuse) => {
  for (const before of ['', ' ']) {
    let said = '';
    try {
      refuse(smiles(before));
    } catch (error) {
      said = (error as Error).message;
    }
    expect(said).toContain('😀');
    expect(said).not.toMatch(/\p{Cs}/u);
  }
});
