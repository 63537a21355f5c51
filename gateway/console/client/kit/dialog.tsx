/** Dialogs: the browser's own, which keep the focus inside. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef } from "preact/hooks";

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}

/** Open as long as it is on the page. */
export function Dialog({ title, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  // Read before anything in it has the focus, and given back when it is gone, however it was closed.
  useLayoutEffect(() => {
    const before = document.activeElement;
    return () => giveFocusBack(before);
  }, []);
  useEffect(() => {
    dialog.current?.showModal();
    const first = dialog.current?.querySelector<HTMLElement>("input, select, textarea");
    first?.focus();
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby={id} onClose={onClose}>
      <header>
        <h2 id={id}>{title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick={() => dialog.current?.close()}>
          ×
        </button>
      </header>
      {children}
    </dialog>
  );
}

/** To what opened the dialog; to the page's title when that is gone, as with a row that was deleted. */
function giveFocusBack(before: Element | null): void {
  queueMicrotask(() => {
    const { activeElement } = document;
    // Another page, or another dialog, has taken it meanwhile.
    if (activeElement !== null && activeElement !== document.body) return;
    if (before instanceof HTMLElement && before.isConnected) before.focus();
    if (document.activeElement === document.body) document.querySelector<HTMLElement>("main h1")?.focus();
  });
}
