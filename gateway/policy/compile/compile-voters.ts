// biome-ignore-all lint/suspicious/noTemplateCurlyInString: messages show templates
import { parseDurationMs } from '../../domain/duration.ts';
import type { Voter, Voters, WebhookVoter } from '../../domain/policy.ts';
import { type CompileOptions, compileCondition } from '../expressions/compile-expression.ts';
import { type Diagnostics, type DocumentPath, locateChild, locateKey, type SourceLocation } from '../faults.ts';
import type { RuleDeclaration, VoterDeclaration } from '../policy-file-schema.ts';
import { type Env, resolveSecrets } from '../resolve-secrets.ts';
import { unwrapTemplate } from './compile-tool.ts';

const DEFAULT_VOTER_TIMEOUT_MS = 2_000;
/** Somebody waits for the call meanwhile, and holds a connection. */
const MAX_VOTER_TIMEOUT_MS = 30_000;
const MIN_SECRET_LENGTH = 16;
const MAX_DELAY_MS = 30 * 86_400_000;
const WEBHOOK_ONLY_KEYS = ['secret', 'within', 'allowPrivate'] as const;

export function compileVoters(
  { quorum, of }: NonNullable<RuleDeclaration['voters']>,
  place: SourceLocation,
  site: (...path: DocumentPath) => CompileOptions,
  env: Env,
  report: Diagnostics,
): Voters {
  if (quorum !== undefined && quorum > of.length)
    report.addError(locateChild(place, 'quorum'), `quorum ${quorum} can never be reached with ${of.length} of them`);
  for (const [index, { name }] of of.entries()) {
    if (of.findIndex((other) => other.name === name) < index)
      report.addError(
        locateChild(place, 'of', index, 'name'),
        `there are two voters called ${name}: each needs a name of its own`,
      );
  }
  const compiled = of.flatMap((voter, index): Voter[] => {
    const where = locateChild(place, 'of', index);
    if ((voter.when === undefined) === (voter.webhook === undefined)) {
      report.addError(where, 'a voter needs exactly one of when and webhook');
      return [];
    }
    if (voter.webhook !== undefined) return compileWebhookVoter(voter, voter.webhook, where, env, report);
    for (const key of WEBHOOK_ONLY_KEYS) {
      if (voter[key] !== undefined) report.addError(locateKey(where, key), `${key} is only for voters with a webhook`);
    }
    return [
      { name: voter.name, when: compileCondition(unwrapTemplate(String(voter.when)), site('of', index, 'when')) },
    ];
  });
  return { quorum: quorum ?? of.length, of: compiled };
}

/** Messages show no part of what the environment or a file filled in. */
function compileWebhookVoter(
  voter: VoterDeclaration,
  webhook: string,
  place: SourceLocation,
  env: Env,
  report: Diagnostics,
): WebhookVoter[] {
  const resolve = (key: 'webhook' | 'secret', template: string) =>
    resolveSecrets(template, env, { file: key === 'secret' }, (message, offset) =>
      report.addError(locateChild(place, key), message, offset),
    );
  const before = report.faults.length;
  const allowPrivate = voter.allowPrivate ?? false;
  const withinMs = voter.within === undefined ? DEFAULT_VOTER_TIMEOUT_MS : parseDurationMs(voter.within);
  if (withinMs > MAX_VOTER_TIMEOUT_MS)
    report.addError(locateChild(place, 'within'), 'a voter is waited for at most 30s');
  const { text: url } = resolve('webhook', webhook);
  if (report.faults.length === before)
    checkWebhookUrl(url, allowPrivate, (what) => report.addError(locateChild(place, 'webhook'), what));
  if (voter.secret === undefined) {
    report.addError(
      place,
      'a webhook needs a secret: without one anybody could answer for it; write secret: "${env.NAME}"',
    );
    return [];
  }
  const known = report.faults.length;
  const { text: secret, values } = resolve('secret', voter.secret);
  if (report.faults.length > known) return [];
  if (values.length === 0)
    report.addError(
      locateChild(place, 'secret'),
      'a secret does not stand in policies: write "${env.NAME}" or "${file("/path")}"',
    );
  else if (secret.length < MIN_SECRET_LENGTH)
    report.addError(
      locateChild(place, 'secret'),
      `is shorter than ${MIN_SECRET_LENGTH} characters: whoever guesses it can forge votes`,
    );
  return [{ name: voter.name, url, secret, allowPrivate, withinMs }];
}

function checkWebhookUrl(text: string, allowPrivate: boolean, fault: (message: string) => void): void {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url?.protocol !== 'https:' && !(url?.protocol === 'http:' && allowPrivate))
    return fault('is not a URL with https:// (or http:// to a private address, with allowPrivate: true)');
  if (url.username !== '' || url.password !== '') fault('no credentials in a url: question and answer are signed');
  if (url.hash !== '') fault('a webhook has no #');
}

export function compileDelay(delay: string, place: SourceLocation, report: Diagnostics): number {
  const ms = parseDurationMs(delay);
  if (ms > MAX_DELAY_MS) report.addError(place, 'a delay is at most 30d');
  return ms;
}
