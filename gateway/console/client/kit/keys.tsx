/** The keyboard: `?` lists keys, `g` and a letter go to a page, `/` to the first search field. They can be switched off. */
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Dialog } from "./dialog.tsx";
import { remember, remembered } from "./remembered.ts";
import { goTo, linkTo } from "./router.ts";

export interface PageKey {
  readonly letter: string;
  readonly page: string;
  readonly title: string;
}

/** WCAG 2.1.4: who speaks to the machine must be able to switch single letters off. */
const isOn = signal(remembered("keys") !== "off");
const sequenceMs = 1_500;

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(?:INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

export function Keys({ pages }: { readonly pages: readonly PageKey[] }) {
  const [isListed, setListed] = useState(false);
  const goneAtMs = useRef(0);
  // Before the page is drawn, so that no key of who sees it is lost.
  useLayoutEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || !isOn.value) return;
      const page = pages.find(({ letter }) => letter === event.key);
      if (page !== undefined && performance.now() - goneAtMs.current < sequenceMs) goTo(linkTo(page.page));
      else if (event.key === "?") setListed(true);
      else if (event.key === "/") document.querySelector<HTMLElement>("[type=search]")?.focus();
      else {
        goneAtMs.current = event.key === "g" ? performance.now() : 0;
        return;
      }
      goneAtMs.current = 0;
      event.preventDefault();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [pages]);
  return (
    <>
      <button type="button" class="quiet" aria-haspopup="dialog" onClick={() => setListed(true)}>
        Shortcuts <kbd>?</kbd>
      </button>
      {isListed && <KeyList pages={pages} onClose={() => setListed(false)} />}
    </>
  );
}

function KeyList({ pages, onClose }: { readonly pages: readonly PageKey[]; readonly onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <label class="check">
        <input
          type="checkbox"
          checked={isOn.value}
          onChange={(event) => {
            isOn.value = event.currentTarget.checked;
            remember("keys", isOn.value ? "" : "off");
          }}
        />
        <span>Single keys do what is listed here</span>
      </label>
      <dl class="keys">
        <KeyRow keys={["?"]} does="Lists keys" />
        <KeyRow keys={["/"]} does="Goes to the search field" />
        <KeyRow keys={["Esc"]} does="Closes a dialog" />
        {pages.map(({ letter, title }) => (
          <KeyRow key={letter} keys={["g", letter]} does={title} />
        ))}
      </dl>
    </Dialog>
  );
}

const KeyRow = ({ keys, does }: { readonly keys: readonly string[]; readonly does: string }) => (
  <div>
    <dt>
      {keys.map((key) => (
        <kbd key={key}>{key}</kbd>
      ))}
    </dt>
    <dd>{does}</dd>
  </div>
);
