/** The frame around every page: the menu, who is signed in, and the page that the address names. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { complain, Feedback } from "./kit/feedback.tsx";
import { Keys } from "./kit/keys.tsx";
import { Name } from "./kit/name.tsx";
import { ErrorNote, Page } from "./kit/parts.tsx";
import { goTo, linkTo, route } from "./kit/router.ts";
import { may, roles, type Session, session, signOut } from "./kit/session.ts";
import { setTheme, type Theme, theme, themes } from "./kit/theme.ts";
import { type PageEntry, pages } from "./pages.ts";
import { SignIn } from "./sign-in.tsx";

export function App() {
  const who = session.value;
  return (
    <>
      {who === undefined ? <p class="soft wait">Loading …</p> : who === null ? <SignIn /> : <Frame who={who} />}
      <Feedback />
    </>
  );
}

const isShown = ({ roles: shownTo, scopes }: PageEntry): boolean =>
  shownTo.some((role) => roles.value.includes(role)) && (scopes === undefined || scopes.some(may));

function Frame({ who }: { readonly who: Session }) {
  const shown = pages.filter(isShown);
  const { page } = route.value;
  const current = shown.find(({ name }) => name === page);
  const [first] = shown;
  useEffect(() => {
    if ((page === "" || page === "sign-in") && first !== undefined) goTo(linkTo(first.name), true);
  }, [page, first]);
  return (
    <div class="frame">
      <button type="button" class="skip" onClick={() => document.querySelector<HTMLElement>("main h1")?.focus()}>
        To the page
      </button>
      <nav aria-label="Pages">
        <p class="brand">Spangate</p>
        <ul>
          {shown.map(({ name, title }) => (
            <li key={name}>
              <a href={linkTo(name)} aria-current={name === page ? "page" : undefined}>
                {title}
              </a>
            </li>
          ))}
          <li>
            <a href="/docs" class="away">
              Documentation
            </a>
          </li>
        </ul>
        <div class="nav-foot">
          <Keys pages={shown.map(({ letter, name, title }) => ({ letter, page: name, title }))} />
          <ThemeSwitch />
        </div>
      </nav>
      <header class="top">
        <Who session={who} />
        <button type="button" onClick={() => void signOut().catch(complain)}>
          Sign out
        </button>
      </header>
      <main id="main">{current !== undefined ? <Outlet key={current.name} entry={current} /> : <NoPage />}</main>
    </div>
  );
}

function Outlet({ entry }: { readonly entry: PageEntry }) {
  const [loaded, setLoaded] = useState<{ readonly Page: ComponentType }>();
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    entry.load().then(setLoaded, () => setFailed(true));
  }, [entry]);
  if (failed) return <ErrorNote message="This page could not be loaded." onRetry={() => location.reload()} />;
  return loaded === undefined ? <p class="soft">Loading …</p> : <loaded.Page />;
}

const NoPage = () => (
  <Page title="No such page">
    <p>There is no page at this address, or this key does not see it.</p>
  </Page>
);

function Who({ session: { tenant_id, tenant_name } }: { readonly session: Session }) {
  return (
    <p class="who">
      {tenant_id === null ? (
        "Operator of the platform"
      ) : (
        <>
          Tenant <Name text={tenant_name} absent={tenant_id} />
        </>
      )}
      <span class="soft"> · {roles.value.at(-1) ?? "no role"}</span>
    </p>
  );
}

const themeNames: Readonly<Record<Theme, string>> = { system: "As the system", light: "Light", dark: "Dark" };

const ThemeSwitch = () => (
  <label class="theme">
    <span class="unseen-text">Colours</span>
    <select value={theme.value} onChange={(event) => setTheme(event.currentTarget.value as Theme)}>
      {themes.map((each) => (
        <option key={each} value={each}>
          {themeNames[each]}
        </option>
      ))}
    </select>
  </label>
);
