// biome-ignore-all lint/suspicious/noTemplateCurlyInString: messages show templates
import { milliseconds } from '../domain/duration.ts';
import type { Voter, Voters, WebhookVoter } from '../domain/policy.ts';
import { bare } from './compile-tool.ts';
import { compileCondition, type Site } from './expressions.ts';
import { at, keyOf, type Path, type Place, type Report } from './faults.ts';
import type { RuleFile, VoterFile } from './schema.ts';
import { type Env, resolveSecrets } from './secrets.ts';

const DEFAULT_WITHIN_MS = 2_000;
/** Somebody waits for the call meanwhile, and holds a connection. */
const MOST_WITHIN_MS = 30_000;
const LEAST_SECRET = 16;
const MOST_DELAY_MS = 30 * 86_400_000;
const OF_WEBHOOKS = ['secret', 'within', 'allowPrivate'] as const;

export function compileVoters(
  { quorum, of }: NonNullable<RuleFile['voters']>,
  place: Place,
  site: (...path: Path) => Site,
  env: Env,
  report: Report,
): Voters {
  if (quorum !== undefined && quorum > of.length)
    report.fault(at(place, 'quorum'), `quorum ${quorum} can never be reached with ${of.length} of them`);
  for (const [index, { name }] of of.entries()) {
    if (of.findIndex((other) => other.name === name) < index)
      report.fault(at(place, 'of', index, 'name'), `there are two voters called ${name}: each needs a name of its own`);
  }
  const compiled = of.flatMap((voter, index): Voter[] => {
    const where = at(place, 'of', index);
    if ((voter.when === undefined) === (voter.webhook === undefined)) {
      report.fault(where, 'a voter needs exactly one of when and webhook');
      return [];
    }
    if (voter.webhook !== undefined) return compileWebhook(voter, voter.webhook, where, env, report);
    for (const key of OF_WEBHOOKS) {
      if (voter[key] !== undefined) report.fault(keyOf(where, key), `${key} is only for voters with a webhook`);
    }
    return [{ name: voter.name, when: compileCondition(bare(String(voter.when)), site('of', index, 'when')) }];
  });
  return { quorum: quorum ?? of.length, of: compiled };
}

/** Messages show no part of what the environment or a file filled in. */
function compileWebhook(voter: VoterFile, webhook: string, place: Place, env: Env, report: Report): WebhookVoter[] {
  const resolve = (key: 'webhook' | 'secret', template: string) =>
    resolveSecrets(template, env, { file: key === 'secret' }, (message, offset) =>
      report.fault(at(place, key), message, offset),
    );
  const before = report.faults.length;
  const allowPrivate = voter.allowPrivate ?? false;
  const withinMs = voter.within === undefined ? DEFAULT_WITHIN_MS : milliseconds(voter.within);
  if (withinMs > MOST_WITHIN_MS) report.fault(at(place, 'within'), 'a voter is waited for at most 30s');
  const { text: url } = resolve('webhook', webhook);
  if (report.faults.length === before) checkUrl(url, allowPrivate, (what) => report.fault(at(place, 'webhook'), what));
  if (voter.secret === undefined) {
    report.fault(
      place,
      'a webhook needs a secret: without one anybody could answer for it; write secret: "${env.NAME}"',
    );
    return [];
  }
  const known = report.faults.length;
  const { text: secret, values } = resolve('secret', voter.secret);
  if (report.faults.length > known) return [];
  if (values.length === 0)
    report.fault(at(place, 'secret'), 'a secret does not stand in policies: write "${env.NAME}" or "${file("/path")}"');
  else if (secret.length < LEAST_SECRET)
    report.fault(at(place, 'secret'), `is shorter than ${LEAST_SECRET} characters: whoever guesses it can forge votes`);
  return [{ name: voter.name, url, secret, allowPrivate, withinMs }];
}

function checkUrl(text: string, allowPrivate: boolean, fault: (message: string) => void): void {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url?.protocol !== 'https:' && !(url?.protocol === 'http:' && allowPrivate))
    return fault('is not a URL with https:// (or http:// to a private address, with allowPrivate: true)');
  if (url.username !== '' || url.password !== '') fault('no credentials in a url: question and answer are signed');
  if (url.hash !== '') fault('a webhook has no #');
}

export function compileDelay(delay: string, place: Place, report: Report): number {
  const ms = milliseconds(delay);
  if (ms > MOST_DELAY_MS) report.fault(place, 'a delay is at most 30d');
  return ms;
}
