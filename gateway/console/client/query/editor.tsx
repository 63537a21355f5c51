/** Where a query is written. What is wrong with it stands below, with its path and the line that it is about. */
import { useRef } from "preact/hooks";
import { lineOfPath } from "./error-place.ts";

export interface Fault {
  readonly message: string;
  /** As the language names places; absent: the text as a whole. */
  readonly path: string | undefined;
}

interface EditorProps {
  readonly text: string;
  readonly fault: Fault | undefined;
  readonly onText: (text: string) => void;
}

/** The same as the API's bound on a query. */
const mostChars = 1_000_000;

export function Editor({ text, fault, onText }: EditorProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  const line = fault?.path === undefined ? undefined : lineOfPath(text, fault.path);
  const show = (): void => {
    const { current } = field;
    if (current === null || line === undefined) return;
    const lines = text.split("\n");
    const start = lines.slice(0, line).reduce((sum, each) => sum + each.length + 1, 0);
    current.focus();
    current.setSelectionRange(start, start + (lines[line]?.length ?? 0));
  };
  return (
    <div class="field">
      <label for="query-text">YAML or JSON</label>
      <textarea
        id="query-text"
        ref={field}
        class="editor"
        rows={18}
        maxLength={mostChars}
        spellcheck={false}
        value={text}
        aria-invalid={fault !== undefined}
        aria-describedby="query-fault"
        onInput={({ currentTarget }) => onText(currentTarget.value)}
      />
      <div id="query-fault" role="status">
        {fault !== undefined && (
          <p class="field-error">
            {fault.message}{" "}
            {line !== undefined && (
              <button type="button" onClick={show}>
                Show line {line + 1}
              </button>
            )}
          </p>
        )}
      </div>
    </div>
  );
}
