/** What a worker is told of a request. */
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import type { PlanOwners } from "../../worker/contract/owners.ts";
import type { InFlight } from "./in-flight.ts";

export function submitMessage(
  { request, workerRequestId = "", lookUp }: InFlight,
  reuse: boolean,
  owners: PlanOwners,
): SubmitMessage {
  const { plan, params, closeTokenIds } = request;
  return {
    type: "submit",
    requestId: workerRequestId,
    plan,
    params,
    reuse,
    owners,
    ...(closeTokenIds !== undefined && { closeTokenIds }),
    ...(lookUp !== undefined && { tellFound: true }),
  };
}
