/**
 * Forms over the API: what it refuses is shown beside the field that its error names (`param`), and has the focus then.
 * Values are read from the page when they are sent; a component keeps none.
 */
import { type ComponentChildren, createContext } from "preact";
import { useContext, useId, useRef, useState } from "preact/hooks";
import { ApiFailure, messageOf } from "./api.ts";

interface Refusal {
  readonly message: string;
  readonly param: string | undefined;
}

const RefusalContext = createContext<Refusal | undefined>(undefined);

export interface FormProps {
  /** @throws ApiFailure, and any error whose message is for the user */
  readonly onSubmit: (values: FormData, form: HTMLFormElement) => Promise<void>;
  readonly submit: string;
  readonly isDanger?: boolean;
  /** Fields and buttons in one line, as above what they filter. */
  readonly isInline?: boolean;
  readonly children: ComponentChildren;
  /** Buttons beside the one that sends. */
  readonly actions?: ComponentChildren;
}

/** `scopes` of `scopes[0]`: the field of the form that an error is about. */
const fieldOf = (param: string | undefined): string => param?.split(/[.[]/)[0] ?? "";

export function Form({ onSubmit, submit, isDanger = false, isInline = false, children, actions }: FormProps) {
  const form = useRef<HTMLFormElement>(null);
  const [refusal, setRefusal] = useState<Refusal>();
  const [isBusy, setBusy] = useState(false);
  const send = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const { current } = form;
    if (current === null || isBusy) return;
    setBusy(true);
    setRefusal(undefined);
    try {
      await onSubmit(new FormData(current), current);
    } catch (error) {
      const param = error instanceof ApiFailure ? error.param : undefined;
      setRefusal({ message: messageOf(error), param });
      const field = current.elements.namedItem(fieldOf(param));
      if (field instanceof HTMLElement) field.focus();
    }
    setBusy(false);
  };
  const isShown = form.current?.elements.namedItem(fieldOf(refusal?.param)) != null;
  return (
    <form ref={form} class={isInline ? "inline" : ""} noValidate onSubmit={(event) => void send(event)}>
      <RefusalContext.Provider value={refusal}>{children}</RefusalContext.Provider>
      <p class="form-error" role="alert">
        {refusal !== undefined && !isShown && refusal.message}
      </p>
      <div class="actions">
        <button type="submit" class={isDanger ? "danger" : "primary"} aria-disabled={isBusy}>
          {submit}
        </button>
        {actions}
      </div>
    </form>
  );
}

/** Beside the button of a form that cannot be undone. */
export const Cancel = ({ onClick }: { readonly onClick: () => void }) => (
  <button type="button" onClick={onClick}>
    Cancel
  </button>
);

interface FieldProps {
  /** As the API calls it; errors that name it are shown here. */
  readonly name: string;
  readonly label: string;
  readonly hint?: ComponentChildren;
}

/** Label, hint and error around a control, and what ties them to it. */
function Field(props: FieldProps & { readonly control: (attributes: object) => ComponentChildren }) {
  const { name, label, hint, control } = props;
  const id = useId();
  const refusal = useContext(RefusalContext);
  const error = refusal !== undefined && fieldOf(refusal.param) === name ? refusal.message : undefined;
  const described = [hint !== undefined && `${id}-hint`, error !== undefined && `${id}-error`]
    .filter(Boolean)
    .join(" ");
  const attributes = {
    ...{ id, name },
    ...(described !== "" && { "aria-describedby": described }),
    ...(error !== undefined && { "aria-invalid": true }),
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {control(attributes)}
      {hint !== undefined && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {error !== undefined && (
        <p class="field-error" id={`${id}-error`} role="alert">
          {error}
        </p>
      )}
    </div>
  );
}

interface TextFieldProps extends FieldProps {
  readonly type?: "text" | "password" | "number" | "date" | "search";
  readonly value?: string | number;
  readonly placeholder?: string;
  readonly autocomplete?: string;
}

// To Preact's types each type of input is one of its own; what is set here is common to all of these.
export const TextField = ({
  type = "text",
  value = "",
  placeholder,
  autocomplete = "off",
  ...field
}: TextFieldProps) => (
  <Field
    {...field}
    control={(attributes) => (
      <input
        {...attributes}
        {...{ placeholder, autocomplete }}
        type={type as "text"}
        defaultValue={String(value)}
        spellcheck={false}
      />
    )}
  />
);

interface SelectFieldProps extends FieldProps {
  readonly value?: string;
  readonly options: readonly (readonly [value: string, label: string])[];
}

export const SelectField = ({ value, options, ...field }: SelectFieldProps) => (
  <Field
    {...field}
    control={(attributes) => (
      <select {...attributes}>
        {options.map(([each, label]) => (
          <option key={each} value={each} selected={each === value}>
            {label}
          </option>
        ))}
      </select>
    )}
  />
);

interface CheckGroupProps extends FieldProps {
  readonly checked: readonly string[];
  readonly options: readonly (readonly [value: string, about: string])[];
}

/** Several of some choices; `values.getAll(name)` has those that were made. */
export function CheckGroup({ name, label, hint, checked, options }: CheckGroupProps) {
  const refusal = useContext(RefusalContext);
  const isWrong = refusal !== undefined && fieldOf(refusal.param) === name;
  return (
    <fieldset class="field">
      <legend>{label}</legend>
      {hint !== undefined && <p class="hint">{hint}</p>}
      {options.map(([value, about]) => (
        <label key={value} class="check">
          <input type="checkbox" name={name} value={value} defaultChecked={checked.includes(value)} />
          <span>
            <code>{value}</code> <span class="soft">{about}</span>
          </span>
        </label>
      ))}
      {isWrong && (
        <p class="field-error" role="alert">
          {refusal.message}
        </p>
      )}
    </fieldset>
  );
}

export const textOf = (values: FormData, name: string): string => String(values.get(name) ?? "").trim();

/** A whole number, or null for an empty field. What is no number is sent as it is, for the API to refuse. */
export function numberOf(values: FormData, name: string): number | string | null {
  const text = textOf(values, name);
  if (text === "") return null;
  return /^\d+$/.test(text) ? Number(text) : text;
}
