/** Whose KV lies where, what becomes of it as it does, and what may be done about it. */
import { useTenantNames } from "../administration/tenant-names.ts";
import type { Cache, TenantCache, Tier } from "../cache/cache.ts";
import { EvictButton } from "../cache/evict.tsx";
import { HappeningList } from "../cache/happenings.tsx";
import { Pins } from "../cache/pins.tsx";
import { useHappenings, useThrottled } from "../cache/use-happenings.ts";
import { bytes, count, percent, shortCount, tierWord } from "../kit/format.ts";
import { Name, visible } from "../kit/name.tsx";
import { Figures, Loaded, Page as PageFrame, Panel } from "../kit/parts.tsx";
import { useGet } from "../kit/resource.ts";
import { may, roles } from "../kit/session.ts";
import { type Column, Table } from "../kit/table.tsx";

export function Page() {
  const isOperator = roles.value.includes("operator");
  return (
    <PageFrame
      title="Cache"
      about={
        isOperator
          ? "Whose KV fills the workers. Of fragments and prompts themselves nothing is shown."
          : "KV of your tenant: what the next prompt finds there is not computed again."
      }
    >
      {isOperator ? <AllCaches /> : <OwnCache />}
    </PageFrame>
  );
}

function OwnCache() {
  const cache = useGet<Cache>("/admin/v1/cache");
  const happenings = useHappenings();
  useThrottled(happenings.round, cache.reload, 1_000);
  return (
    <>
      <Loaded resource={cache}>
        {({ data: [own] }) =>
          own === undefined ? <p class="soft">{nothingHeld}</p> : <OwnParts own={own} onEvicted={cache.reload} />
        }
      </Loaded>
      <HappeningList happenings={happenings} />
      {may("corpus:read") && <Pins />}
    </>
  );
}

function OwnParts({ own, onEvicted }: { readonly own: TenantCache; readonly onEvicted: () => void }) {
  return (
    <>
      <Figures
        figures={[
          { label: "In the workers' pools", value: bytes(own.bytes), note: `${count(own.blocks)} blocks` },
          { label: "Tokens", value: shortCount(own.tokens), note: "found instead of computed" },
          { label: "Of these fragments", value: percent(own.blocks === 0 ? null : own.fragment_blocks / own.blocks) },
          { label: "Pinned", value: count(own.pinned_blocks), note: "blocks that go last" },
        ]}
      />
      <Panel
        title="Where it lies"
        actions={
          placesOf(own).length > 0 && <EvictButton tenantId={own.tenant_id} name="your tenant" onDone={onEvicted} />
        }
      >
        <Table
          title="Where it lies"
          columns={placeColumns}
          rows={placesOf(own)}
          keyOf={({ place }) => place}
          empty={nothingHeld}
        />
      </Panel>
    </>
  );
}

const nothingHeld = "Nothing is held. What is asked lies here afterwards, and what is prepared of a corpus.";

interface Place {
  readonly place: string;
  readonly blocks: number;
  readonly pinned: number | null;
  readonly bytes: number;
  readonly quota: number | null;
}

const placesOf = ({ workers, tiers }: TenantCache): readonly Place[] => [
  ...workers.map(({ worker, blocks, pinned_blocks, bytes: size }) => {
    return { place: `${worker}, pool`, blocks, pinned: pinned_blocks, bytes: size, quota: null };
  }),
  ...tiers.map(({ tier, blocks, bytes: size, quota_bytes: quota }) => {
    return { place: tierWord(tier), blocks, pinned: null, bytes: size, quota };
  }),
];

const placeColumns: readonly Column<Place>[] = [
  { title: "Place", cell: ({ place }) => place },
  { title: "Blocks", isNumber: true, cell: ({ blocks }) => count(blocks) },
  { title: "Pinned", isNumber: true, cell: ({ pinned }) => count(pinned) },
  { title: "Size", isNumber: true, cell: ({ bytes: size }) => bytes(size) },
  { title: "At most", isNumber: true, cell: ({ quota }) => bytes(quota) },
];

/** How often an operator's table is asked for anew while things happen: it has all tenants. */
const allEveryMs = 3_000;

function AllCaches() {
  const cache = useGet<Cache>("/admin/v1/cache");
  const happenings = useHappenings();
  useThrottled(happenings.round, cache.reload, allEveryMs);
  const nameOf = useTenantNames();
  return (
    <>
      <Loaded resource={cache}>
        {({ data, tiers }) => (
          <>
            {tiers
              .filter(({ tier, worker }) => tier === "device" && worker !== null)
              .map((tier) => (
                <Pool key={tier.worker} tier={tier} tenants={data} nameOf={nameOf} />
              ))}
            <Panel title="Tenants">
              <Table
                title="Tenants"
                columns={tenantColumns(nameOf, cache.reload)}
                rows={data}
                keyOf={({ tenant_id }) => tenant_id}
                empty="Nobody holds anything."
              />
            </Panel>
            <Panel title="Tiers">
              <Table
                title="Tiers"
                columns={tierColumns}
                rows={tiers}
                keyOf={({ tier, worker }) => `${tier} ${worker}`}
              />
            </Panel>
          </>
        )}
      </Loaded>
      <HappeningList happenings={happenings} nameOf={(id) => visible(nameOf(id))} />
    </>
  );
}

interface PoolProps {
  readonly tier: Tier;
  readonly tenants: readonly TenantCache[];
  readonly nameOf: (tenantId: string) => string;
}

/** Tenants that have a part of their own in the drawing of a pool. */
const shownTenants = 6;

/** A worker's pool from left to right: who has most, all others, what is free. The same stands in words. */
function Pool({ tier: { worker, bytes: held, quota_bytes: size }, tenants, nameOf }: PoolProps) {
  const room = Math.max(size ?? held, held, 1);
  const parts = tenants
    .flatMap(({ tenant_id, workers }) => {
      const part = workers.find((one) => one.worker === worker);
      return part === undefined ? [] : [{ name: nameOf(tenant_id), bytes: part.bytes }];
    })
    .toSorted((a, b) => b.bytes - a.bytes);
  const others = parts.slice(shownTenants).reduce((sum, part) => sum + part.bytes, 0);
  const shown = [
    ...parts.slice(0, shownTenants).map((part, index) => ({ ...part, kind: `tenant-${index % 2}` })),
    ...(others > 0 ? [{ name: "others", bytes: others, kind: "others" }] : []),
    { name: "free", bytes: room - held, kind: "free" },
  ];
  return (
    <Panel title={`Pool of ${worker}`}>
      <p>
        {bytes(held)} of {bytes(room)} held ({percent(held / room)}).
      </p>
      <ul class="pool">
        {shown.map(({ name, bytes: part, kind }) => (
          <li key={name} class={kind} style={{ flexGrow: part / room }}>
            <Name text={name} /> <span>{percent(part / room)}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

const tenantColumns = (nameOf: (id: string) => string, onEvicted: () => void): readonly Column<TenantCache>[] => [
  { title: "Tenant", width: 1.8, cell: ({ tenant_id }) => <Name text={nameOf(tenant_id)} /> },
  { title: "Blocks", isNumber: true, cell: ({ blocks }) => count(blocks) },
  { title: "Fragments", isNumber: true, cell: ({ fragment_blocks }) => count(fragment_blocks) },
  { title: "Pinned", isNumber: true, cell: ({ pinned_blocks }) => count(pinned_blocks) },
  { title: "Tokens", isNumber: true, cell: ({ tokens }) => shortCount(tokens) },
  { title: "In pools", isNumber: true, cell: ({ bytes: size }) => bytes(size) },
  {
    title: "Elsewhere",
    isNumber: true,
    width: 1.4,
    cell: ({ tiers }) => tiers.map(({ tier, bytes: size }) => `${tierWord(tier)} ${bytes(size)}`).join(", "),
  },
  ...(may("platform:admin")
    ? [
        {
          title: "Change",
          cell: ({ tenant_id }: TenantCache) => (
            <EvictButton tenantId={tenant_id} name={visible(nameOf(tenant_id))} onDone={onEvicted} />
          ),
        },
      ]
    : []),
];

const tierColumns: readonly Column<Tier>[] = [
  { title: "Place", cell: ({ tier, worker }) => (worker === null ? tierWord(tier) : `${worker}, ${tierWord(tier)}`) },
  { title: "Blocks", isNumber: true, cell: ({ blocks }) => count(blocks) },
  { title: "Size", isNumber: true, cell: ({ bytes: size }) => bytes(size) },
  { title: "Pinned", isNumber: true, cell: ({ pinned_bytes }) => bytes(pinned_bytes) },
  { title: "Room", isNumber: true, cell: ({ quota_bytes }) => bytes(quota_bytes) },
];
