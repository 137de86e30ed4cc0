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
/** Text of surrogate pairs only: a cut at any position splits a pair, either with or without the space before. */
const buildLongText = (before: string) => before + '😀'.repeat(300);

/** Refusals are logged, and the log cannot store half a surrogate pair. */
test.each<[string, (text: string) => unknown]>([
  ['a condition', (text) => compileCondition(`args.x == args.l || args.nope == "${text}"`, options)({ args })],
  [
    'an expression that yields no boolean',
    (text) => compileCondition(`"${text}" == "" ? args.x : args.l`, options)({ args }),
  ],
  [
    'an expression that yields no number',
    (text) => compileNumber(`"${text}" == "" ? args.x : args.l`, options)({ args }),
  ],
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
])('the message about %s is never cut inside a character', (_, refuse) => {
  for (const before of ['', ' ']) {
    let message = '';
    try {
      refuse(buildLongText(before));
    } catch (error) {
      message = (error as Error).message;
    }
    expect(message).toContain('😀');
    expect(message).not.toMatch(/\p{Cs}/u);
  }
});
