// Requests to the server extension (gpukernel/jupyter/server.py).
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { __, said } from './texts';

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

/** Ask the server extension; an answer that is an error becomes an `Error` with its sentence, in the reader's language where it is a known one. */
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
    throw new Error(content?.message ? said(content.message) : __('The server answered %1.', response.status));
  }
  return content as T;
}
