/** Signing in, by an API key or by the link that `serve --dev` prints. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "./kit/api.ts";
import { Form, TextField, textOf } from "./kit/form.tsx";
import { ErrorNote } from "./kit/parts.tsx";
import { goTo, route } from "./kit/router.ts";
import { endedBecause, signIn } from "./kit/session.ts";

export function SignIn() {
  const box = useRef<HTMLDivElement>(null);
  const [refused, setRefused] = useState("");
  const { page, rest } = route.value;
  const link = page === "sign-in" ? rest[0] : undefined;
  useLayoutEffect(() => {
    document.title = "Sign in – Spangate";
    box.current?.querySelector("input")?.focus();
  }, []);
  useEffect(() => {
    if (link === undefined) return;
    // It is used up with this, and has no place in the history.
    goTo("#/", true);
    signIn({ link }).catch((error: unknown) => setRefused(messageOf(error)));
  }, [link]);
  const why = refused || endedBecause.value;
  return (
    <main class="sign-in">
      <div ref={box} class="panel">
        <h1>Spangate</h1>
        <p class="soft">Sign in with an API key. The browser keeps a cookie in its place, for at most 12 hours.</p>
        {why !== "" && <ErrorNote message={why} />}
        <Form submit="Sign in" onSubmit={(values) => signIn({ api_key: textOf(values, "api_key") })}>
          <TextField
            name="api_key"
            label="API key"
            type="password"
            autocomplete="current-password"
            hint={
              <>
                <code>spangate serve --dev</code> prints a link that signs in by itself.
              </>
            }
          />
        </Form>
        <p>
          <a href="/docs">Documentation</a>
        </p>
      </div>
    </main>
  );
}
