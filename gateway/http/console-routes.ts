import { hash } from 'node:crypto';
import type { FastifyInstance } from 'fastify';

/** A file of the console: its name below `/`, and what is in it. */
export interface ConsoleFile {
  readonly name: string;
  readonly bytes: Buffer;
}

const TYPES: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  svg: 'image/svg+xml',
};

/**
 * Only what came with this page runs in it, and nothing can be written into it but text: a browser that knows trusted types
 * refuses every way of making HTML out of a string.
 */
const SECURITY = {
  'content-security-policy': [
    "default-src 'self'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; '),
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=()',
};

/**
 * The console: files that were read when the gateway started. They tell nothing, so nobody is asked for a key here; what they
 * show is asked for by the page with the key of whoever signs in.
 */
export function consoleRoutes(app: FastifyInstance, files: readonly ConsoleFile[]): void {
  for (const { name, bytes } of files) {
    const etag = `"${hash('sha256', bytes, 'hex').slice(0, 32)}"`;
    const type = TYPES[name.split('.').at(-1) ?? ''] ?? 'application/octet-stream';
    app.get(name === 'index.html' ? '/' : `/console/${name}`, (request, reply) => {
      // Asked for again each time, so that a page is never made of the files of two versions.
      reply.headers({ ...SECURITY, etag, 'cache-control': 'no-cache' });
      const known = request.headers['if-none-match']?.split(/\s*,\s*/) ?? [];
      if (known.includes(etag) || known.includes(`W/${etag}`)) return reply.status(304).send();
      return reply.type(type).send(bytes);
    });
  }
}
