/** What the console says by itself: notes that go away, errors that stay, and words for screen readers alone. */
import { signal } from "@preact/signals";
import { messageOf } from "./api.ts";

interface Toast {
  readonly id: number;
  readonly text: string;
  readonly kind: "note" | "error";
}

const shownMs = 6_000;
const mostToasts = 5;
const toasts = signal<readonly Toast[]>([]);
const spoken = signal("");
const nextId = { value: 1 };

/** Says that something was done. */
export function note(text: string): void {
  const id = add(text, "note");
  setTimeout(() => dismiss(id), shownMs);
}

/** Says that something failed, until it is dismissed. */
export function complain(error: unknown): void {
  add(messageOf(error), "error");
}

/** For screen readers alone, when they are done with what they are reading. */
export function say(text: string): void {
  // The same words twice are no change, which nobody would read out.
  spoken.value = spoken.value === text ? `${text}\u00a0` : text;
}

function add(text: string, kind: Toast["kind"]): number {
  const id = nextId.value++;
  toasts.value = [...toasts.value, { id, text, kind }].slice(-mostToasts);
  return id;
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

const ofKind = (kind: Toast["kind"]) =>
  toasts.value
    .filter((toast) => toast.kind === kind)
    .map(({ id, text }) => (
      <div key={id} class={`toast ${kind}`}>
        <span>{text}</span>
        <button type="button" class="quiet" aria-label="Dismiss" onClick={() => dismiss(id)}>
          ×
        </button>
      </div>
    ));

/** The places where all this appears; once on the page. */
export function Feedback() {
  return (
    <div class="toasts">
      <output aria-live="polite">{ofKind("note")}</output>
      <div role="alert">{ofKind("error")}</div>
      <div class="unseen-text" aria-live="polite">
        {spoken.value}
      </div>
    </div>
  );
}
