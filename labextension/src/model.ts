// The state of this person's slices in the front end.  Changes come as events; only use is polled for: one small request in
// five seconds while there is a slice to show, none while the page is hidden.
import { Event } from '@jupyterlab/services';
import { Poll } from '@lumino/polling';
import { ISignal, Signal } from '@lumino/signaling';
import { ask, SCHEMA } from './api';
import { IKernelChange, IKernelStatus, IServerStatus } from './kernel_status';
import { __ } from './texts';

const INTERVAL = 5000;
const POINTS = 120; // ten minutes

export interface IPoint {
  time: number;
  memory: number; // 0 to 1
  compute: number; // 0 to 1
}

export class Slices {
  constructor(events: Event.IManager) {
    this._poll = new Poll({
      name: 'gpukernel:status',
      factory: () => this._ask(),
      frequency: { interval: INTERVAL, backoff: true, max: 60000 },
      standby: () => document.hidden || !(this._urgent || this._wanted()),
      auto: false
    });
    void this._poll.start();
    events.stream.connect((_, emission) => {
      if (emission.schema_id === SCHEMA) {
        const change = emission as unknown as IKernelChange;
        this._event.emit(change);
        void this.refresh();
      }
    });
  }

  get status(): IServerStatus {
    return this._status;
  }

  /** Something is different. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** A kernel's slice, or its place in the queue, has changed. */
  get event(): ISignal<this, IKernelChange> {
    return this._event;
  }

  /** Whoever shows all slices says so: then they are asked for even where this server has none. */
  set watched(value: boolean) {
    this._watched = value;
    if (value) {
      void this.refresh();
    }
  }

  kernel(id: string | undefined): IKernelStatus | undefined {
    return this._status.kernels.find(kernel => kernel.kernel_id === id);
  }

  history(id: string): IPoint[] {
    return this._history.get(id) ?? [];
  }

  /** Ask now, and no more often than twice a second. */
  async refresh(): Promise<void> {
    if (Date.now() - this._asked < 500) {
      if (this._later === 0) {
        this._later = window.setTimeout(() => {
          this._later = 0;
          void this.refresh();
        }, 500);
      }
      return;
    }
    this._asked = Date.now();
    this._urgent = true;
    await this._poll.refresh();
    await this._poll.tick;
  }

  async act(kernel: string, what: string, body: object = {}): Promise<void> {
    await ask(`kernels/${kernel}/${what}`, body);
    await this.refresh();
  }

  async endLease(lease: string): Promise<void> {
    await ask(`leases/${lease}/release`, {});
    await this.refresh();
  }

  private _wanted(): boolean {
    return this._watched || this._status.kernels.length > 0;
  }

  private async _ask(): Promise<void> {
    this._urgent = false;
    try {
      this._status = await ask<IServerStatus>('status');
    } catch (error) {
      this._status = { ...this._status, problem: (error as Error).message };
      this._changed.emit();
      throw error;
    }
    for (const kernel of this._status.kernels) {
      const points = this._history.get(kernel.kernel_id) ?? [];
      points.push({
        time: this._status.time,
        memory: kernel.memory_bytes ? kernel.used_bytes / kernel.memory_bytes : 0,
        compute: kernel.gpu_share ?? 0
      });
      this._history.set(kernel.kernel_id, points.slice(-POINTS));
    }
    for (const id of [...this._history.keys()]) {
      if (!this.kernel(id)) {
        this._history.delete(id);
      }
    }
    this._changed.emit();
  }

  private _asked = 0;
  private _later = 0;
  private _urgent = true;
  private _watched = false;
  private _poll: Poll;
  private _status: IServerStatus = { kernels: [], others: [], problem: '', time: 0 };
  private _history = new Map<string, IPoint[]>();
  private _changed = new Signal<this, void>(this);
  private _event = new Signal<this, IKernelChange>(this);
}

export function size(bytes: number): string {
  const mib = bytes / 2 ** 20;
  return mib < 10240 ? `${Math.round(mib).toLocaleString('en')} MiB` : `${Number((mib / 1024).toFixed(1))} GiB`;
}

export function duration(seconds: number): string {
  if (seconds < 90) {
    return __('%1 s', Math.max(1, Math.round(seconds)));
  }
  return seconds < 5400 ? __('%1 min', Math.round(seconds / 60)) : __('%1 h', Number((seconds / 3600).toFixed(1)));
}

export function percent(part: number): string {
  return `${Math.round(part * 100)} %`;
}

/** GPU-hours of this week, in minutes where they would round to nothing; `allowed` is 0 where nothing bounds them. */
export function hoursInWords(used: number, allowed: number): string {
  if (used > 0 && used < 0.1) {
    const minutes = used * 60 < 0.1 ? '< 0.1' : (used * 60).toFixed(1);
    return allowed
      ? __('%1 GPU-minutes of %2 GPU-hours this week', minutes, allowed)
      : __('%1 GPU-minutes this week', minutes);
  }
  const hours = used ? used.toFixed(used < 1 ? 2 : 1) : 0;
  return allowed ? __('%1 of %2 GPU-hours this week', hours, allowed) : __('%1 GPU-hours this week', hours);
}

/** A slice in a few words, for the status bar. */
export function inWords(kernel: IKernelStatus): string {
  if (kernel.state === 'waiting') {
    const about = kernel.estimate_seconds >= 0 ? __(', about %1', duration(kernel.estimate_seconds)) : '';
    return kernel.position
      ? __('%1: position %2%3', kernel.what, kernel.position, about)
      : __('%1: waiting for the pool', kernel.what);
  }
  if (kernel.state !== 'live') {
    return __('%1: no slice', kernel.what);
  }
  const busy = kernel.gpu_share === null ? '' : __(' · %1 busy', percent(kernel.gpu_share));
  return __('%1 · %2 of %3%4', kernel.what, size(kernel.used_bytes), size(kernel.memory_bytes), busy);
}
