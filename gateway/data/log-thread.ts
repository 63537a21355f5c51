/** The program of the thread that copies the database's log into the database. */
import { copyLog } from "../../db/open.ts";
import { serveTasks } from "../threads/serve.ts";

serveTasks({ copyLog });
