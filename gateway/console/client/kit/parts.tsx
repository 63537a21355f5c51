/** Small parts that pages are made of. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { route } from "./router.ts";

interface PageProps {
  readonly title: string;
  /** One line below the title: what this page is for. */
  readonly about?: ComponentChildren;
  /** Buttons beside the title. */
  readonly actions?: ComponentChildren;
  readonly children: ComponentChildren;
}

/** A page's frame. When one comes to it, the title has the focus, so that screen readers begin there. */
export function Page({ title, about, actions, children }: PageProps) {
  const heading = useRef<HTMLHeadingElement>(null);
  const path = [route.value.page, ...route.value.rest].join("/");
  // Another address is another page, under the same title too. Before it is drawn: who sees it may be typing already.
  useLayoutEffect(() => {
    document.title = `${title} – Spangate`;
    heading.current?.focus({ preventScroll: true });
  }, [title, path]);
  return (
    <>
      <header class="page-head">
        <div>
          <h1 tabIndex={-1} ref={heading}>
            {title}
          </h1>
          {about !== undefined && <p class="soft">{about}</p>}
        </div>
        <div class="actions">{actions}</div>
      </header>
      {children}
    </>
  );
}

/** A part of a page with a heading of its own. */
export function Panel({ title, actions, children }: Omit<PageProps, "about">) {
  return (
    <section class="panel" aria-label={title}>
      <header>
        <h2>{title}</h2>
        <div class="actions">{actions}</div>
      </header>
      {children}
    </section>
  );
}

interface FigureProps {
  readonly label: string;
  readonly value: ComponentChildren;
  readonly note?: ComponentChildren;
}

/** Numbers that one looks for first, beside each other. */
export function Figures({ figures }: { readonly figures: readonly FigureProps[] }) {
  return (
    <dl class="figures">
      {figures.map(({ label, value, note }) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>
            <strong>{value}</strong> {note !== undefined && <span class="soft">{note}</span>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

export type Tone = "good" | "warn" | "bad" | "plain";

/** A state in a word; its colour says nothing that the word does not. */
export const Badge = ({ tone = "plain", children }: { readonly tone?: Tone; readonly children: ComponentChildren }) => (
  <span class={`badge ${tone}`}>{children}</span>
);

export function ErrorNote({ message, onRetry }: { readonly message: string; readonly onRetry?: () => void }) {
  return (
    <div class="error-note" role="alert">
      <span>{message}</span>
      {onRetry !== undefined && (
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** What a resource has: its data, or that it is on its way, or why it did not come. */
export function Loaded<Data>(props: {
  readonly resource: { readonly data: Data | undefined; readonly error: string | undefined; reload(): void };
  readonly children: (data: Data) => ComponentChildren;
}) {
  const { data, error, reload } = props.resource;
  return (
    <>
      {error !== undefined && <ErrorNote message={error} onRetry={reload} />}
      {data !== undefined ? props.children(data) : error === undefined && <p class="soft">Loading …</p>}
    </>
  );
}

/** A secret or a text to take along, with a button that copies it. */
export function CopyText({ text, label }: { readonly text: string; readonly label: string }) {
  const button = useRef<HTMLButtonElement>(null);
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(text);
    if (button.current !== null) button.current.textContent = "Copied";
  };
  return (
    <span class="copy">
      <code>{text}</code>
      <button type="button" ref={button} aria-label={`Copy ${label}`} onClick={() => void copy()}>
        Copy
      </button>
    </span>
  );
}
