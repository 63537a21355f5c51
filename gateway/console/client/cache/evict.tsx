/** Evicting all of a tenant's KV, after a question: what is evicted has to be computed again. */
import { useState } from "preact/hooks";
import { call } from "../kit/api.ts";
import { Dialog } from "../kit/dialog.tsx";
import { complain, note } from "../kit/feedback.tsx";
import { counted } from "../kit/format.ts";

interface EvictProps {
  readonly tenantId: string;
  /** What it is called in the question. */
  readonly name: string;
  readonly onDone: () => void;
}

export function EvictButton({ tenantId, name, onDone }: EvictProps) {
  const [isAsking, setAsking] = useState(false);
  const evict = async (): Promise<void> => {
    setAsking(false);
    try {
      const path = `/admin/v1/tenants/${encodeURIComponent(tenantId)}/cache`;
      const { blocks } = await call<{ readonly blocks: number }>("DELETE", path);
      note(`${counted(blocks, "block")} evicted.`);
      onDone();
    } catch (error) {
      complain(error);
    }
  };
  return (
    <>
      <button type="button" class="danger" onClick={() => setAsking(true)} aria-label={`Evict the KV of ${name}`}>
        Evict
      </button>
      {isAsking && (
        <Dialog title={`Evict the KV of ${name}?`} onClose={() => setAsking(false)}>
          <p>
            All of it goes, from every worker, what is pinned too. Texts stay, and are computed again when they are
            asked for.
          </p>
          <div class="actions">
            <button type="button" class="danger" onClick={() => void evict()}>
              Evict all of it
            </button>
            <button type="button" onClick={() => setAsking(false)}>
              Keep it
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}
