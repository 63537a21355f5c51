/**
 * What has to be done so that a vector store holds what some folders, web sites or buckets hold. Everything that is
 * compared is in the store: the name and the SHA-256 of each of its files, and the attribute that says which folder it
 * is of. So nothing on this side can be lost, and a run that was cut off is made good by the next.
 */

/** The attribute of files that a sync put into a store; its value is the folder's label. */
export const labelAttribute = "synced_from";

/** Attributes that one file may have. */
const maxAttributes = 16;

/** A file of a vector store, as the API describes it. */
export interface StoredFile {
  readonly id: string;
  readonly status: "in_progress" | "completed" | "failed" | "cancelled";
  readonly attributes: Readonly<Record<string, string | number | boolean>>;
  readonly chunking_strategy?:
    | {
        readonly type: "static";
        readonly static: { readonly max_chunk_size_tokens: number; readonly chunk_overlap_tokens: number };
      }
    | undefined;
  /** Absent when the upload was deleted a moment ago. */
  readonly spangate?: { readonly filename: string; readonly sha256: string } | undefined;
}

/** A file in a folder. */
export interface LocalFile {
  /** The folder's. */
  readonly label: string;
  readonly name: string;
  /** Its path or URL, by which people know it. */
  readonly path: string;
  /** Where its bytes lie; absent: at its path, or nowhere, when the store has them. */
  readonly bytesAt?: string | undefined;
  /** undefined: the file cannot be read. What the store has of it stays. */
  readonly sha256: string | undefined;
  /** What the store is told of it beside its label. */
  readonly attributes?: Readonly<Record<string, string>> | undefined;
}

/** A local file whose newest version the store does not have, or has not ingested, or beside older ones. */
export interface FileWork {
  readonly file: LocalFile;
  /** The newest version, where the store has it: it waits for ingestion, has failed, or stands beside older ones. */
  readonly present: StoredFile | undefined;
  /** Versions to detach once the newest is ingested. */
  readonly older: readonly StoredFile[];
}

export interface SyncPlan {
  readonly work: readonly FileWork[];
  readonly unchanged: readonly LocalFile[];
  /** Files that a local one has in the same version, but whose attributes lack its folder's label, or what is new. */
  readonly relabelled: readonly { readonly stored: StoredFile; readonly attributes: StoredFile["attributes"] }[];
  /** Files that no folder has any more. */
  readonly gone: readonly StoredFile[];
  /** Files of the store that were put there in another way, or by a sync of other folders. They stay. */
  readonly others: readonly StoredFile[];
}

export function labelOf({ attributes }: StoredFile): string | undefined {
  const label = attributes[labelAttribute];
  return typeof label === "string" ? label : undefined;
}

const nameOf = (stored: StoredFile): string => stored.spangate?.filename ?? "";
/** Whether something is told of the file that the store does not know, such as a new entity tag of the same bytes. */
const hasNews = ({ attributes = {} }: LocalFile, stored: StoredFile): boolean =>
  Object.entries(attributes).some(([name, value]) => stored.attributes[name] !== value);
const versionKey = (name: string, sha256: string): string => `${sha256} ${name}`;

/**
 * @param labels of all folders, also of empty ones
 * @param mirror whether also others' files are to go
 */
export function planSync(
  local: readonly LocalFile[],
  stored: readonly StoredFile[],
  labels: ReadonlySet<string>,
  mirror: boolean,
): SyncPlan {
  const byVersion = new Map(stored.map((file) => [versionKey(nameOf(file), file.spangate?.sha256 ?? ""), file]));
  const byName = Map.groupBy(stored, nameOf);
  const presentOf = ({ name, sha256 = "" }: LocalFile) => byVersion.get(versionKey(name, sha256));
  /** Ids of files that some local file has in the same version. They stay whosever label they have. */
  const wanted = new Set(local.flatMap((file) => presentOf(file)?.id ?? []));
  const claimed = new Set<string>();
  const places = new Set(local.map(({ label, name }) => versionKey(name, label)));
  /** Whether nobody's label stands on the file, or that of one of these folders that has no such file any more. */
  const needsLabel = (file: StoredFile): boolean => {
    const label = labelOf(file);
    if (label === undefined) return true;
    return labels.has(label) && !places.has(versionKey(nameOf(file), label));
  };
  const plan = { work: [] as FileWork[], unchanged: [] as LocalFile[], relabelled: [] as SyncPlan["relabelled"][0][] };
  for (const file of local) {
    const present = presentOf(file);
    const versions = (byName.get(file.name) ?? []).filter((other) => (labelOf(other) ?? file.label) === file.label);
    for (const { id } of versions) claimed.add(id);
    if (file.sha256 === undefined) continue;
    const older = versions.filter(({ id }) => !wanted.has(id));
    if (present?.status === "completed" && older.length === 0) plan.unchanged.push(file);
    else plan.work.push({ file, present, older });
    if (present === undefined) continue;
    const isNews = labelOf(present) === file.label && hasNews(file, present);
    if (!isNews && !needsLabel(present)) continue;
    const attributes = { ...present.attributes, ...file.attributes, [labelAttribute]: file.label };
    if (Object.keys(attributes).length <= maxAttributes) plan.relabelled.push({ stored: present, attributes });
  }
  const rest = stored.filter(({ id }) => !wanted.has(id) && !claimed.has(id));
  const isOurs = (file: StoredFile): boolean => labels.has(labelOf(file) ?? "");
  return {
    ...plan,
    gone: rest.filter((file) => mirror || isOurs(file)),
    others: rest.filter((file) => !mirror && !isOurs(file)),
  };
}
