import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyInstance } from 'fastify';
import { ZodError } from 'zod';
import { EffectJournal } from './effect-journal.ts';
import { registerFiles } from './files.ts';
import { registerMail } from './mail.ts';
import { registerPayments } from './payments.ts';
import { ServiceError } from './service-answers.ts';
import { registerTickets } from './tickets.ts';

/**
 * The demo upstream: payments, tickets, files and mail. The services share no code with the gateway, require a credential
 * that no agent has, and fail on purpose for these reserved values:
 *
 *     card     card_lost_answer   charged, then the connection breaks; a repeat with the same key is answered
 *     card     card_declined      422 declined, nothing happened
 *     title    lost answer        the ticket is opened, then the connection breaks
 *     subject  lost answer        the mail is sent, then the connection breaks
 *
 * `GET /effects` counts the effects that really happened.
 */
export async function registerDemoServices(
  app: FastifyInstance,
  options: { readonly stateFile: string; readonly token: string },
): Promise<void> {
  const journal = await EffectJournal.open(options.stateFile);
  isolateHandlers(app);
  const isBearer = buildBearerCheck(options.token);
  app.addHook('onRequest', async (request) => {
    if (!isBearer(request.headers.authorization)) {
      throw new ServiceError(401, 'unauthenticated', 'The demo services need the credential of the gateway.');
    }
  });
  app.get('/effects', async () => (await journal.readState()).copyEffectCounts());
  for (const [prefix, service] of Object.entries({
    payments: registerPayments,
    tickets: registerTickets,
    files: registerFiles,
    mail: registerMail,
  })) {
    app.register(async (scope) => service(scope, journal), { prefix: `/${prefix}` });
  }
}

/** The services run in the gateway's process, so they get their own body parser and error handler. */
function isolateHandlers(app: FastifyInstance): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', { parseAs: 'string' }, app.getDefaultJsonParser('error', 'error'));
  app.setNotFoundHandler((_request, reply) =>
    reply.code(404).send(buildErrorBody('not_found', 'There is nothing here.')),
  );
  app.setErrorHandler((error: Error & { statusCode?: number }, request, reply) => {
    if (error instanceof ServiceError) return reply.code(error.status).send(buildErrorBody(error.code, error.message));
    if (error instanceof ZodError) {
      const faults = error.issues.map(({ path, message }) => `${path.join('.') || 'body'}: ${message}`);
      return reply.code(422).send(buildErrorBody('invalid', faults.join('; ')));
    }
    if (error.statusCode !== undefined && error.statusCode < 500) {
      return reply.code(error.statusCode).send(buildErrorBody('bad_request', error.message));
    }
    request.log.error(error);
    return reply.code(500).send(buildErrorBody('internal', 'The demo service failed.'));
  });
}

function buildErrorBody(code: string, message: string): object {
  return { error: { code, message } };
}

function buildBearerCheck(token: string): (header: string | undefined) => boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  const expected = digest(`Bearer ${token}`);
  return (header) => timingSafeEqual(digest(header ?? ''), expected);
}
