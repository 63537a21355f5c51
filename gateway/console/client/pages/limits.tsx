/** What a tenant, or one of its keys, may take, and how much of it is taken. */
import type { ComponentChildren } from "preact";
import { sizeOf, sizeText } from "../administration/size.ts";
import { OfTenant, type Tenant } from "../administration/tenant.tsx";
import { call } from "../kit/api.ts";
import { note } from "../kit/feedback.tsx";
import { Form, numberOf, TextField, textOf } from "../kit/form.tsx";
import { ago, bytes, count, percent } from "../kit/format.ts";
import { Loaded, Page as PageFrame, Panel } from "../kit/parts.tsx";
import { useGet } from "../kit/resource.ts";
import { linkTo, route } from "../kit/router.ts";
import { may } from "../kit/session.ts";

interface Rates {
  readonly requests_per_minute: number | null;
  readonly tokens_per_minute: number | null;
  readonly concurrency: number | null;
}

interface Budget {
  readonly limit: number | null;
  readonly used: number;
  readonly resets_at: number;
}

interface TenantLimits extends Rates {
  readonly tokens_per_day: number | null;
  readonly tokens_per_month: number | null;
  readonly kv_bytes: number | null;
  readonly kv_disk_bytes: number | null;
  readonly kv_s3_bytes: number | null;
  readonly storage_bytes: number | null;
  readonly budgets: { readonly day: Budget; readonly month: Budget };
  readonly storage: { readonly limit_bytes: number; readonly used_bytes: number };
}

type Field<Of> = readonly [name: keyof Of & string, label: string, hint?: string];

const rateFields: readonly Field<Rates>[] = [
  ["requests_per_minute", "Requests a minute"],
  ["tokens_per_minute", "Tokens a minute"],
  ["concurrency", "Requests at the same time"],
];
const budgetFields: readonly Field<TenantLimits>[] = [
  ["tokens_per_day", "Tokens a day", "Computed: what is found in the cache costs nothing. Days are those of UTC."],
  ["tokens_per_month", "Tokens a month"],
];
const sizeFields: readonly Field<TenantLimits>[] = [
  ["kv_bytes", "KV on each worker", "As in 8GB or 8GiB."],
  ["kv_disk_bytes", "KV in files"],
  ["kv_s3_bytes", "KV in a bucket"],
  ["storage_bytes", "Files and texts", "Empty: what the server gives each tenant."],
];

export function Page() {
  const [, keyId] = route.value.rest;
  return (
    <PageFrame
      title={keyId === undefined ? "Limits" : "Limits of a key"}
      about="What may be taken, and how much of it is. An empty field is no limit."
    >
      <OfTenant page="limits">
        {(tenant) =>
          keyId === undefined ? <LimitsOfTenant tenant={tenant} /> : <LimitsOfKey tenant={tenant} id={keyId} />
        }
      </OfTenant>
    </PageFrame>
  );
}

function LimitsOfTenant({ tenant }: { readonly tenant: Tenant }) {
  const path = `/admin/v1/tenants/${tenant.id}/limits`;
  const limits = useGet<TenantLimits>(path);
  const save = async (values: FormData): Promise<void> => {
    const numbers = [...rateFields, ...budgetFields].map(([name]) => [name, numberOf(values, name)] as const);
    const sizes = sizeFields.map(([name]) => [name, sizeOf(textOf(values, name))] as const);
    await call("PUT", path, { body: Object.fromEntries([...numbers, ...sizes]) });
    note("The limits hold from now on.");
    limits.reload();
  };
  return (
    <Loaded resource={limits}>
      {(found) => (
        <>
          <div class="columns">
            <Taken title="Tokens today" taken={found.budgets.day.used} limit={found.budgets.day.limit} format={count}>
              Begins anew {ago(found.budgets.day.resets_at)}.
            </Taken>
            <Taken
              title="Tokens this month"
              taken={found.budgets.month.used}
              limit={found.budgets.month.limit}
              format={count}
            >
              Begins anew {ago(found.budgets.month.resets_at)}.
            </Taken>
            <Taken title="Stored" taken={found.storage.used_bytes} limit={found.storage.limit_bytes} format={bytes}>
              Files, their texts, stored responses and batches.
            </Taken>
          </div>
          {may("platform:admin") ? (
            <Panel title="Change">
              <Form submit="Save" onSubmit={save}>
                <div class="fields">
                  <NumberFields fields={[...rateFields, ...budgetFields]} values={found} />
                  {sizeFields.map(([name, label, hint]) => (
                    <TextField key={name} {...{ name, label, hint }} value={sizeText(Number(found[name]) || null)} />
                  ))}
                </div>
              </Form>
            </Panel>
          ) : (
            <Panel title="What holds">
              <dl class="details">
                {[...rateFields, ...budgetFields].map(([name, label]) => (
                  <Detail key={name} label={label} value={textOrNone(Number(found[name]), count)} />
                ))}
                {sizeFields.map(([name, label]) => (
                  <Detail key={name} label={label} value={textOrNone(Number(found[name]), bytes)} />
                ))}
              </dl>
              <p class="soft">The platform's operator sets them.</p>
            </Panel>
          )}
        </>
      )}
    </Loaded>
  );
}

function LimitsOfKey({ tenant, id }: { readonly tenant: Tenant; readonly id: string }) {
  const path = `/admin/v1/keys/${encodeURIComponent(id)}/limits`;
  const limits = useGet<Rates>(path);
  const save = async (values: FormData): Promise<void> => {
    await call("PUT", path, {
      body: Object.fromEntries(rateFields.map(([name]) => [name, numberOf(values, name)])),
    });
    note("The limits hold from now on.");
    limits.reload();
  };
  return (
    <Loaded resource={limits}>
      {(found) => (
        <Panel title="Change">
          <p>
            Key <code>{id}</code>, within <a href={linkTo("limits", [tenant.id])}>its tenant's limits</a>.
          </p>
          <Form submit="Save" onSubmit={save}>
            <div class="fields">
              <NumberFields fields={rateFields} values={found} />
            </div>
          </Form>
        </Panel>
      )}
    </Loaded>
  );
}

interface NumberFieldsProps<Of> {
  readonly fields: readonly Field<Of>[];
  readonly values: Of;
}

function NumberFields<Of>({ fields, values }: NumberFieldsProps<Of>) {
  return (
    <>
      {fields.map(([name, label, hint]) => (
        <TextField key={name} {...{ name, label, hint }} value={values[name] === null ? "" : String(values[name])} />
      ))}
    </>
  );
}

interface TakenProps {
  readonly title: string;
  readonly taken: number;
  readonly limit: number | null;
  readonly format: (value: number | null) => string;
  readonly children: ComponentChildren;
}

const Taken = ({ title, taken, limit, format, children }: TakenProps) => (
  <Panel title={title}>
    <p>
      <strong>{format(taken)}</strong>{" "}
      {limit === null ? "without a limit" : `of ${format(limit)} (${percent(taken / limit)})`}
    </p>
    {limit !== null && <meter min={0} max={limit} high={limit * 0.9} value={taken} aria-label={title} />}
    <p class="soft">{children}</p>
  </Panel>
);

/** A limit is 1 at least; 0 stands for none here. */
const textOrNone = (limit: number, format: (value: number) => string): string =>
  limit === 0 ? "no limit" : format(limit);

const Detail = ({ label, value }: { readonly label: string; readonly value: string }) => (
  <>
    <dt>{label}</dt>
    <dd>{value}</dd>
  </>
);
