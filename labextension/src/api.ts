// What the server extension (gpukernel/jupyter/server.py) answers, and how it is asked.
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

export const SCHEMA = 'https://events.gpukernel.org/slice/v1';

export interface IUse {
  lease_id: string;
  state: string;
  created: number;
  until: number;
  notice: string;
  device: string;
  device_name: string;
  device_memory_bytes: number;
  memory_bytes: number;
  used_bytes: number;
  gpu_share: number | null;
  gpu_seconds: number;
}

export interface IKernel extends IUse {
  kernel_id: string;
  what: string;
  words: string;
  sentence: string;
  position: number;
  estimate_seconds: number;
  share: number | null;
  model: string;
}

export interface IOther extends IUse {
  description: string;
  server: string;
}

export interface IStatus {
  kernels: IKernel[];
  others: IOther[];
  problem: string;
  time: number;
}

export interface IOffers {
  offers: { share: number; model: string; memory_bytes: number; free: number | null; waiting: number }[];
  models: { [model: string]: number };
  note: string;
}

/** The body of an event of `SCHEMA`. */
export interface IChange {
  kernel_id: string;
  state: string;
  what: string;
  words: string;
  sentence: string;
  notice: string;
  position: number;
  estimate_seconds: number;
}

/** Ask the server extension; an answer that is an error becomes an `Error` with its sentence. */
export async function ask<T>(path: string, body?: object): Promise<T> {
  const settings = ServerConnection.makeSettings();
  const url = URLExt.join(settings.baseUrl, 'gpukernel', 'api', path);
  const init = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) };
  const response = await ServerConnection.makeRequest(url, init, settings);
  const text = await response.text();
  let content: any = null;
  try {
    content = text ? JSON.parse(text) : null;
  } catch {
    // a proxy's page; its status says enough
  }
  if (!response.ok) {
    throw new Error(content?.message || `The server answered ${response.status}.`);
  }
  return content as T;
}
