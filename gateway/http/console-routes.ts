import { hash } from 'node:crypto';
import type { FastifyInstance } from 'fastify';

/** A file of the console; `name` is its path below `/console/`. */
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
 * Only scripts of this gateway run in the page. Browsers with trusted types refuse to create HTML from a string, so untrusted text
 * stays text.
 */
const SECURITY_HEADERS = {
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
 * Serves the files of the console, read when the gateway started. They need no key, because they contain no data. The page requests
 * data with the key of the person who signs in.
 */
export function consoleRoutes(app: FastifyInstance, files: readonly ConsoleFile[]): void {
  for (const { name, bytes } of files) {
    const etag = `"${hash('sha256', bytes, 'hex').slice(0, 32)}"`;
    const type = TYPES[name.split('.').at(-1) ?? ''] ?? 'application/octet-stream';
    app.get(name === 'index.html' ? '/' : `/console/${name}`, (request, reply) => {
      // Revalidate on every load, so that a page never mixes files of two versions.
      reply.headers({ ...SECURITY_HEADERS, etag, 'cache-control': 'no-cache' });
      const cachedTags = request.headers['if-none-match']?.split(/\s*,\s*/) ?? [];
      if (cachedTags.includes(etag) || cachedTags.includes(`W/${etag}`)) return reply.status(304).send();
      return reply.type(type).send(bytes);
    });
  }
}
