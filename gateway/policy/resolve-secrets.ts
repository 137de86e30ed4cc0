// biome-ignore-all lint/suspicious/noTemplateCurlyInString: messages show templates
import { readFileSync, statSync } from 'node:fs';
import { splitTemplate } from './expressions/compile-template.ts';
import { describeFileError } from './read-policy-files.ts';

/**
 * `${env.NAME}` and `${file("/path")}`: credentials by reference. They are resolved when policies are loaded, so a
 * reload reads them again. No message ever shows a resolved value.
 */
export interface ResolvedSecrets {
  readonly text: string;
  /** The values that were filled in. */
  readonly values: readonly string[];
}

export type Env = Readonly<Record<string, string | undefined>>;

const MAX_SECRET_FILE_BYTES = 65_536;

export function resolveSecrets(
  template: string,
  env: Env,
  allowed: { readonly file: boolean },
  fault: (message: string, offset?: number) => void,
): ResolvedSecrets {
  const parts = splitTemplate(template);
  if ('fault' in parts) {
    fault(parts.fault, parts.offset);
    return { text: '', values: [] };
  }
  const values: string[] = [];
  const texts = parts.map((part) => {
    if ('text' in part) return part.text;
    const value = resolveReference(part.expression.trim(), env, allowed.file);
    if ('fault' in value) {
      fault(value.fault, part.offset);
      return '';
    }
    values.push(value.value);
    return value.value;
  });
  return { text: texts.join(''), values };
}

function resolveReference(expression: string, env: Env, files: boolean): { value: string } | { fault: string } {
  const name = /^env\.([A-Za-z_]\w*)$/.exec(expression)?.[1];
  if (name !== undefined) {
    const value = Object.hasOwn(env, name) ? env[name] : undefined;
    return value === undefined ? { fault: `the environment variable ${name} is not set` } : { value };
  }
  const file = /^file\(\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*\)$/.exec(expression);
  if (file !== null && files) return readSecretFile(file[1] ?? file[2] ?? '');
  return { fault: `only \${env.NAME}${files ? ' and ${file("/path")} are' : ' is'} known here` };
}

function readSecretFile(path: string): { value: string } | { fault: string } {
  try {
    const { size } = statSync(path);
    // Only a regular file: a device or FIFO would never end.
    if (!statSync(path).isFile()) return { fault: `${path} is not a file` };
    if (size > MAX_SECRET_FILE_BYTES) return { fault: `${path} is larger than ${MAX_SECRET_FILE_BYTES} bytes` };
    return { value: readFileSync(path, 'utf8').trim() };
  } catch (error) {
    return { fault: `${path} cannot be read: ${describeFileError(error)}` };
  }
}
