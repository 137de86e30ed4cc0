// biome-ignore-all lint/suspicious/noTemplateCurlyInString: messages show templates
import { parseDurationMs } from '../../domain/duration.ts';
import type { Voter, Voters, WebhookVoter } from '../../domain/policy.ts';
import { type CompileOptions, compileCondition } from '../expressions/compile-expression.ts';
import { type Diagnostics, type DocumentPath, locateChild, locateKey, type SourceLocation } from '../faults.ts';
import type { RuleDeclaration, VoterDeclaration } from '../policy-file-schema.ts';
import { type Env, resolveSecrets } from '../resolve-secrets.ts';
import { unwrapTemplate } from './compile-tool.ts';

const DEFAULT_VOTER_TIMEOUT_MS = 2_000;
/** The caller waits for the votes and keeps a connection open, so the limit is short. */
const MAX_VOTER_TIMEOUT_MS = 30_000;
const MIN_SECRET_LENGTH = 16;
const MAX_DELAY_MS = 30 * 86_400_000;
const WEBHOOK_ONLY_KEYS = ['secret', 'within', 'allowPrivate'] as const;

export function compileVoters(
  { quorum, of }: NonNullable<RuleDeclaration['voters']>,
  location: SourceLocation,
  optionsAt: (...path: DocumentPath) => CompileOptions,
  env: Env,
  diagnostics: Diagnostics,
): Voters {
  if (quorum !== undefined && quorum > of.length)
    diagnostics.addError(
      locateChild(location, 'quorum'),
      `quorum must be at most the number of voters, ${of.length} (got ${quorum}).`,
    );
  for (const [index, { name }] of of.entries()) {
    if (of.findIndex((other) => other.name === name) < index)
      diagnostics.addError(
        locateChild(location, 'of', index, 'name'),
        `Two voters have the name ${name}. Give each voter a name of its own.`,
      );
  }
  const compiled = of.flatMap((voter, index): Voter[] => {
    const voterLocation = locateChild(location, 'of', index);
    if ((voter.when === undefined) === (voter.webhook === undefined)) {
      const got = voter.when === undefined ? 'neither' : 'both';
      diagnostics.addError(voterLocation, `A voter must have either when or webhook (got ${got}).`);
      return [];
    }
    if (voter.webhook !== undefined) return compileWebhookVoter(voter, voter.webhook, voterLocation, env, diagnostics);
    for (const key of WEBHOOK_ONLY_KEYS) {
      if (voter[key] !== undefined)
        diagnostics.addError(locateKey(voterLocation, key), `${key} is only for voters with a webhook. Remove it.`);
    }
    return [
      { name: voter.name, when: compileCondition(unwrapTemplate(String(voter.when)), optionsAt('of', index, 'when')) },
    ];
  });
  return { quorum: quorum ?? of.length, of: compiled };
}

/** Messages show no part of a resolved value. */
function compileWebhookVoter(
  voter: VoterDeclaration,
  webhook: string,
  location: SourceLocation,
  env: Env,
  diagnostics: Diagnostics,
): WebhookVoter[] {
  const resolve = (key: 'webhook' | 'secret', template: string) =>
    resolveSecrets(template, env, { file: key === 'secret' }, (message, offset) =>
      diagnostics.addError(locateChild(location, key), message, offset),
    );
  const before = diagnostics.faults.length;
  const allowPrivate = voter.allowPrivate ?? false;
  const withinMs = voter.within === undefined ? DEFAULT_VOTER_TIMEOUT_MS : parseDurationMs(voter.within);
  if (withinMs > MAX_VOTER_TIMEOUT_MS)
    diagnostics.addError(locateChild(location, 'within'), `within must be at most 30s (got ${voter.within}).`);
  const { text: url } = resolve('webhook', webhook);
  if (diagnostics.faults.length === before)
    checkWebhookUrl(url, allowPrivate, (message) => diagnostics.addError(locateChild(location, 'webhook'), message));
  if (voter.secret === undefined) {
    diagnostics.addError(
      location,
      'A voter with a webhook must have a secret, because its votes are signed. Write secret: "${env.NAME}".',
    );
    return [];
  }
  const known = diagnostics.faults.length;
  const { text: secret, values } = resolve('secret', voter.secret);
  if (diagnostics.faults.length > known) return [];
  if (values.length === 0)
    diagnostics.addError(
      locateChild(location, 'secret'),
      'A secret must not be written in a policy file. Write "${env.NAME}" or "${file("/path")}".',
    );
  else if (secret.length < MIN_SECRET_LENGTH)
    diagnostics.addError(
      locateChild(location, 'secret'),
      `secret must have at least ${MIN_SECRET_LENGTH} characters, because votes can be forged with a guessed one.`,
    );
  return [{ name: voter.name, url, secret, allowPrivate, withinMs }];
}

function checkWebhookUrl(text: string, allowPrivate: boolean, reportFault: (message: string) => void): void {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url?.protocol !== 'https:' && !(url?.protocol === 'http:' && allowPrivate))
    return reportFault(
      'webhook must be a URL with https://. For http:// to a private address, write allowPrivate: true.',
    );
  if (url.username !== '' || url.password !== '')
    reportFault('webhook must not contain a user name or password. The secret signs the request and the vote.');
  if (url.hash !== '') reportFault('webhook must not contain #.');
}

export function compileDelay(delay: string, location: SourceLocation, diagnostics: Diagnostics): number {
  const ms = parseDurationMs(delay);
  if (ms > MAX_DELAY_MS) diagnostics.addError(location, `delay must be at most 30d (got ${delay}).`);
  return ms;
}
