/** What a worker is told of a request. */
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { type PlanOwners, retentionOf } from "../../worker/contract/owners.ts";
import type { InFlight } from "./in-flight.ts";

export function submitMessage(
  { request, workerRequestId = "", lookUp }: InFlight,
  reuse: boolean,
  owners: PlanOwners,
): SubmitMessage {
  const { plan, params, closeTokenIds, retention } = request;
  return {
    type: "submit",
    requestId: workerRequestId,
    plan,
    params,
    reuse,
    owners,
    ...(retention !== undefined && { retention: retentionOf[retention] }),
    ...(closeTokenIds !== undefined && { closeTokenIds }),
    ...(lookUp !== undefined && { tellFound: true }),
  };
}
