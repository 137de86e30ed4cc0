// biome-ignore-all lint/suspicious/noTemplateCurlyInString: messages show templates
import { readFileSync, statSync } from 'node:fs';
import { splitTemplate } from './expressions/compile-template.ts';
import { describeFileError } from './read-policy-files.ts';

/**
 * The value of a template with `${env.NAME}` and `${file("/path")}`. Credentials are written as such references and resolved at each
 * load, so a reload reads them again. No message shows a resolved value.
 */
export interface ResolvedSecrets {
  readonly text: string;
  /** The values of the references. */
  readonly values: readonly string[];
}

export type Env = Readonly<Record<string, string | undefined>>;

const MAX_SECRET_FILE_BYTES = 65_536;

export function resolveSecrets(
  template: string,
  env: Env,
  allowed: { readonly file: boolean },
  reportFault: (message: string, offset?: number) => void,
): ResolvedSecrets {
  const parts = splitTemplate(template);
  if ('fault' in parts) {
    reportFault(parts.fault, parts.offset);
    return { text: '', values: [] };
  }
  const values: string[] = [];
  const texts = parts.map((part) => {
    if ('text' in part) return part.text;
    const value = resolveReference(part.expression.trim(), env, allowed.file);
    if ('fault' in value) {
      reportFault(value.fault, part.offset);
      return '';
    }
    values.push(value.value);
    return value.value;
  });
  return { text: texts.join(''), values };
}

function resolveReference(expression: string, env: Env, canReadFiles: boolean): { value: string } | { fault: string } {
  const name = /^env\.([A-Za-z_]\w*)$/.exec(expression)?.[1];
  if (name !== undefined) {
    const value = Object.hasOwn(env, name) ? env[name] : undefined;
    return value === undefined
      ? {
          fault: `The environment variable ${name} is not set. Set it where the gateway starts and restart the gateway, or remove the reference.`,
        }
      : { value };
  }
  const file = /^file\(\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*\)$/.exec(expression);
  if (file !== null && canReadFiles) return readSecretFile(file[1] ?? file[2] ?? '');
  // The message leaves out the expression, which may be a credential that somebody pasted here.
  const known = canReadFiles ? '${env.NAME} and ${file("/path")}' : '${env.NAME}';
  return { fault: `This value cannot use expressions. Write only ${known}.` };
}

function readSecretFile(path: string): { value: string } | { fault: string } {
  try {
    const { size } = statSync(path);
    // Only a regular file, because reading a device or FIFO might never end.
    if (!statSync(path).isFile()) return { fault: `${path} is not a regular file. Name a file with the secret.` };
    if (size > MAX_SECRET_FILE_BYTES)
      return { fault: `${path} must have at most ${MAX_SECRET_FILE_BYTES} bytes (got ${size}).` };
    return { value: readFileSync(path, 'utf8').trim() };
  } catch (error) {
    return { fault: `${path} cannot be read (${describeFileError(error)}). Check the path and its permissions.` };
  }
}
