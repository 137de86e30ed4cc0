import { access, mkdir, mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import chromium from '@sparticuz/chromium';
import { type BrowserContext, type Page, chromium as playwright } from 'playwright-core';

/**
 * Unpacks Chromium once for this clone. The package unpacks into the temporary directory, where a copy of another user may lie,
 * and does not say when the copy is complete. So this unpacks into a directory of its own and then renames it.
 */
async function unpackChromium(): Promise<string> {
  const target = resolve('node_modules/.cache/oncegate-browser');
  const isUnpacked = () =>
    access(join(target, 'chromium')).then(
      () => true,
      () => false,
    );
  if (!(await isUnpacked())) {
    await mkdir(join(target, '..'), { recursive: true });
    const fresh = await mkdtemp(`${target}-`);
    const { TMPDIR } = process.env;
    process.env['TMPDIR'] = fresh;
    await chromium.executablePath().finally(() => {
      if (TMPDIR === undefined) delete process.env['TMPDIR'];
      else process.env['TMPDIR'] = TMPDIR;
    });
    // Another test process may have been faster; its copy is as good.
    await rename(fresh, target).catch(() => rm(fresh, { recursive: true }));
  }
  return join(target, 'chromium');
}

/** A real browser with its own profile, which records errors and requests. */
export class TestBrowser {
  readonly errors: string[] = [];
  readonly requestedUrls: string[] = [];
  readonly page: Page;
  readonly #context: BrowserContext;
  readonly #home: string;

  private constructor(context: BrowserContext, page: Page, home: string) {
    this.#context = context;
    this.page = page;
    this.#home = home;
    page.setDefaultTimeout(15_000);
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type())) this.errors.push(message.text());
    });
    page.on('pageerror', (error) => this.errors.push(String(error)));
    page.on('request', (request) => this.requestedUrls.push(request.url()));
    page.on('dialog', (dialog) => {
      this.errors.push(`The page opened a dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
  }

  static async start(): Promise<TestBrowser> {
    const home = await mkdtemp(join(tmpdir(), 'oncegate-browser-'));
    const context = await playwright.launchPersistentContext(home, {
      executablePath: await unpackChromium(),
      args: [...chromium.args],
      headless: true,
      viewport: { width: 1280, height: 860 },
    });
    return new TestBrowser(context, context.pages()[0] ?? (await context.newPage()), home);
  }

  /** Opens a view of the console. */
  async openView(hash: string): Promise<void> {
    await this.page.evaluate(`location.hash = ${JSON.stringify(hash)}`);
  }

  async signIn(url: string, key: string): Promise<void> {
    await this.page.goto(url);
    await this.page.evaluate('sessionStorage.clear()');
    await this.page.goto('about:blank');
    await this.page.goto(url);
    await this.page.getByLabel('Key of a person').fill(key);
    await this.page.getByRole('button', { name: 'Sign in' }).click();
    await this.page.getByRole('link', { name: 'Overview' }).waitFor();
  }

  /** Fills in the reason of the open dialog and confirms it. */
  async confirm(name: string, reason: string): Promise<void> {
    const dialog = this.page.getByRole('dialog');
    await dialog.getByLabel('Reason').fill(reason);
    await dialog.getByRole('button', { name, exact: true }).click();
    await dialog.waitFor({ state: 'detached' });
  }

  async stop(): Promise<void> {
    await this.#context.close();
    await rm(this.#home, { recursive: true, force: true });
  }
}
