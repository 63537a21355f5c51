/** How the command line is given an S3 server and its keys: as S3 programs are, never as arguments. */
import type { S3Access } from "../../sources/s3.ts";
import type { CommandInput, Flag } from "./command.ts";

export const s3Flags: Readonly<Record<string, Flag>> = {
  endpoint: { type: "string", value: "URL", env: "S3_ENDPOINT", description: "S3 server other than Amazon's." },
  region: { type: "string", value: "NAME", env: "S3_REGION", description: "Region of the S3 bucket (us-east-1)." },
};

/** undefined: the environment has no keys. */
export function s3AccessOf(input: CommandInput): S3Access | undefined {
  const { env } = process;
  const accessKeyId = env.S3_ACCESS_KEY_ID || env.AWS_ACCESS_KEY_ID;
  const secretAccessKey = env.S3_SECRET_ACCESS_KEY || env.AWS_SECRET_ACCESS_KEY;
  if (!accessKeyId || !secretAccessKey) return undefined;
  const sessionToken = env.S3_SESSION_TOKEN || env.AWS_SESSION_TOKEN || undefined;
  const region = input.text("region") ?? (env.AWS_REGION || undefined);
  const endpoint = input.text("endpoint") ?? (env.AWS_ENDPOINT || undefined);
  return { endpoint, region, accessKeyId, secretAccessKey, sessionToken };
}
