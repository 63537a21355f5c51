/**
 * A server and a browser that looks at its console. Each look has a window of its own, with nothing in it of those before,
 * and notes whatever must not happen: errors on the browser's console, violations of the content security policy,
 * requests to other hosts. A window is used again when its look has ended: a new one takes half a second of processor time.
 */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { type AxeResults, source as axeSource } from "axe-core";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { isLong } from "../support/effort.ts";
import { startTestServer, type TestServer, type TestServerOptions } from "../support/server.ts";
import { until } from "../support/until.ts";

/** The system's own browser; undefined: these tests are skipped. */
export const chromiumPath =
  Bun.which("chromium") ?? Bun.which("chromium-browser") ?? Bun.which("google-chrome-stable") ?? undefined;

if (chromiumPath === undefined) process.stdout.write("skipped: there is no Chromium on this machine\n");

export type Theme = "light" | "dark";

/** Each page and dialog is looked at in both themes; the long form also does everything in both. */
export const themes: readonly Theme[] = isLong ? ["light", "dark"] : ["light"];

export interface Look extends AsyncDisposable {
  readonly page: Page;
  /** What must not have happened. A test that provokes something of it takes it out. */
  readonly problems: string[];
  /** Goes to a page of the console, as in `#/audit`, and waits until it has what it asked for. */
  go(hash: string): Promise<void>;
  /**
   * Finds what the Web Content Accessibility Guidelines 2.2 (AA) do not allow, and what stands beside the page or is
   * cut off on a phone, and takes pictures where somebody wants them. In the short form it looks at the colours of the
   * other theme as well: these are all that is its own.
   */
  check(name: string): Promise<void>;
}

export interface ConsoleRig extends AsyncDisposable {
  readonly server: TestServer;
  /** Signs in with a key, as somebody would. */
  signIn(apiKey: string, theme?: Theme): Promise<Look>;
  /** Nobody is signed in. */
  visit(path?: string, theme?: Theme): Promise<Look>;
  /** A key of the first tenant, with these scopes. */
  key(tenantId: string, scopes: readonly string[]): Promise<{ readonly id: string; readonly key: string }>;
}

export const memberScopes = ["inference", "corpus:read", "corpus:write", "corpus:prepare"] as const;
export const tenantAdminScopes = [...memberScopes, "tenant:admin"] as const;

const wcag = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"];
const everyRule = { type: "tag", values: wcag };
const colourRules = { type: "rule", values: ["color-contrast", "link-in-text-block"] };

const desktop = { width: 1_280, height: 800 };
const phone = { width: 360, height: 740 };

/**
 * What reaches beyond the window, but for what scrolls by itself, and lists of choices narrower than what is chosen:
 * browsers cut its text off without a word.
 */
const cutOff = `(() => {
  const scrolls = ".table, .waterfall, .tree, .happenings, .unseen-text, .skip, pre, details";
  const brush = document.createElement("canvas").getContext("2d");
  const isCut = (element) => {
    const { left, right, width } = element.getBoundingClientRect();
    if (width === 0 || element.closest(scrolls)) return false;
    if (right > innerWidth + 1 || left < -1) return true;
    if (element.tagName !== "SELECT") return false;
    const { font, paddingLeft, paddingRight } = getComputedStyle(element);
    brush.font = font;
    const arrowPixels = 16;
    const text = brush.measureText(element.selectedOptions[0]?.textContent ?? "").width;
    return text + Number.parseFloat(paddingLeft) + Number.parseFloat(paddingRight) + arrowPixels > width;
  };
  return [...document.querySelectorAll("body *")].filter(isCut)
    .map(({ tagName, className, textContent }) => [tagName, className, textContent.slice(0, 80)].join(" "));
})()`;

/** What is cut off for good: charts have another width some frames after the window has. */
async function staysCutOff(page: Page): Promise<readonly string[]> {
  let found: readonly string[] = [];
  const isNothing = async (): Promise<boolean> => {
    found = await page.evaluate<string[]>(cutOff);
    return found.length === 0;
  };
  await until(isNothing, "nothing is cut off", 3_000).catch(() => undefined);
  return found;
}

/** Where pictures are wanted: SPANGATE_PICTURES names a folder. */
function pictureFolder(): string | undefined {
  const { SPANGATE_PICTURES: folder } = process.env;
  if (folder !== undefined) mkdirSync(folder, { recursive: true });
  return folder;
}

export async function openRig(options: TestServerOptions = {}): Promise<ConsoleRig> {
  const server = await startTestServer(options);
  const pictures = pictureFolder();
  // Chromium's own sandbox does not start as root, as in containers.
  const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
  const browser = await chromium.launch({ ...(chromiumPath && { executablePath: chromiumPath }), args });
  const windows = new Windows(browser, server.url);
  const visit = async (path = "/", theme: Theme = "light"): Promise<Look> => {
    const window = await windows.open(theme);
    const { page, problems } = window;
    await page.goto(server.url + path);
    const go = async (hash: string): Promise<void> => {
      await page.evaluate(shownAt(hash));
      await settled(page);
    };
    const check = async (name: string): Promise<void> => {
      const picture = async (of: string): Promise<void> => {
        if (pictures !== undefined) await page.screenshot({ path: join(pictures, `${name}-${of}.png`) });
      };
      await picture(theme);
      problems.push(...(await violations(page, everyRule)).map((each) => `${name} ${theme}: ${each}`));
      await page.setViewportSize(phone);
      await picture(`${theme}-phone`);
      problems.push(...(await staysCutOff(page)).map((each) => `${name} on a phone: ${each}`));
      await page.setViewportSize(desktop);
      if (isLong) return;
      const other = theme === "light" ? "dark" : "light";
      await page.emulateMedia({ colorScheme: other });
      problems.push(...(await violations(page, colourRules)).map((each) => `${name} ${other}: ${each}`));
      await page.emulateMedia({ colorScheme: theme });
    };
    return { page, problems, go, check, [Symbol.asyncDispose]: () => windows.close(window) };
  };
  return {
    server,
    visit,
    signIn: async (apiKey, theme) => {
      const look = await visit("/", theme);
      await look.page.getByLabel("API key").fill(apiKey);
      await look.page.getByRole("button", { name: "Sign in" }).click();
      await look.page.getByRole("navigation", { name: "Pages" }).waitFor();
      await settled(look.page);
      return look;
    },
    key: (tenantId, scopes) => server.admin.json("POST", `/admin/v1/tenants/${tenantId}/keys`, { scopes }),
    [Symbol.asyncDispose]: async () => {
      await browser.close();
      await server[Symbol.asyncDispose]();
    },
  };
}

interface Window {
  readonly context: BrowserContext;
  readonly page: Page;
  /** Of the look that it is open for. */
  problems: string[];
}

/** Windows of a browser, each a context with one page. One that was closed is as good as new, and opened again. */
class Windows {
  readonly #browser: Browser;
  readonly #url: string;
  readonly #closed: Window[] = [];

  constructor(browser: Browser, url: string) {
    this.#browser = browser;
    this.#url = url;
  }

  async open(theme: Theme): Promise<Window> {
    const window = this.#closed.pop() ?? (await this.#make());
    window.problems = [];
    await window.page.emulateMedia({ colorScheme: theme });
    return window;
  }

  async #make(): Promise<Window> {
    const context = await this.#browser.newContext({ viewport: desktop });
    const window: Window = { context, page: await context.newPage(), problems: [] };
    watch(window, this.#url);
    return window;
  }

  /** Leaves the page, which ends what it does, and forgets who was signed in. */
  async close(window: Window): Promise<void> {
    const { context, page } = window;
    await page.unrouteAll({ behavior: "ignoreErrors" });
    // An empty page of the same host: one of another would have a process of its own.
    const empty = `${this.#url}/closed`;
    await page.route(empty, (route) =>
      route.fulfill({ contentType: "text/html", body: '<link rel="icon" href="data:,">' }),
    );
    await page.goto(empty);
    await page.unroute(empty);
    await page.evaluate("localStorage.clear(), sessionStorage.clear()");
    await context.clearCookies();
    this.#closed.push(window);
  }
}

/** Notes what must not happen in any page of the window. */
function watch(window: Window, url: string): void {
  const { context } = window;
  context.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") window.problems.push(`console: ${message.text()}`);
  });
  context.on("weberror", (error) => window.problems.push(`error: ${error.error().message}`));
  context.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) window.problems.push(`request to ${request.url()}`);
  });
}

/**
 * Goes there, and resolves when the page before is gone. The browser tells the client of a new hash in a later task, and
 * the client draws in one after that: until then what is looked at is the page before, which has all that it asked for.
 */
const shownAt = (hash: string): string => `new Promise((resolve) => {
  const drawn = () => requestAnimationFrame(() => setTimeout(() => setTimeout(resolve)));
  const before = location.href;
  location.hash = ${JSON.stringify(hash)};
  if (location.href === before) drawn();
  else addEventListener("hashchange", drawn, { once: true });
})`;

/** Resolves when there is a page, and nothing of it is on its way any more. */
async function settled(page: Page): Promise<void> {
  const isThere =
    'document.querySelector("main h1") && !document.querySelector("main").textContent.includes("Loading …")';
  // Playwright's own waiting evaluates text in the page, which the page's policy forbids.
  await until(async () => Boolean(await page.evaluate(isThere)), "the page has what it asked for");
}

async function violations(page: Page, rules: typeof everyRule): Promise<readonly string[]> {
  // Evaluated by the debugger, which the page's policy does not bind. A page keeps it until it is loaded again.
  if (!(await page.evaluate("typeof axe === 'object'"))) await page.evaluate(axeSource);
  // All that is as it should be would be described too, and what styles of other hosts say asked for.
  const options = JSON.stringify({ runOnly: rules, resultTypes: ["violations"], preload: false });
  const run = `axe.run(document, ${options}).then(({ violations }) => violations)`;
  const broken = await page.evaluate<AxeResults["violations"]>(run);
  return broken.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => `${id}: ${html} ${failureSummary}`));
}
