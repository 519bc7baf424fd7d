// Requests to the server extension (gpukernel/jupyter/server.py).
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

export const SCHEMA = 'https://events.gpukernel.org/slice/v1';

export interface IOffers {
  offers: { share: number; model: string; memory_bytes: number; free: number | null; waiting: number }[];
  models: { [model: string]: number };
  note: string;
}

/** The prospects of one size: `free` at once, `wait` later, `refused` never. */
export interface IChance {
  state: 'free' | 'wait' | 'refused';
  memory_bytes: number;
  free: number;
  waiting: number;
  sentence: string;
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
