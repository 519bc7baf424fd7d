// Notifications: at most one for each slice, changed in place, and no more than three at a time.
import { Notification } from '@jupyterlab/apputils';
import { Actions } from './actions';
import { IKernelStatus } from './kernel_status';
import { duration, Slices } from './model';
import { __, said, sentence } from './texts';

/** How many slices have a notification of their own; what is beyond shares one. */
const MOST = 2;
const BRIEFLY = 4000;
const SUMMARY = 'all others';

interface INotice {
  /** What it is about: a notice of another kind is shown though somebody closed the one before. */
  kind: string;
  message: string;
  type: Notification.TypeOptions;
  autoClose: number | false;
  actions: Notification.IAction[];
}

interface IShown {
  id: string;
  kind: string;
  message: string;
  brief: boolean;
}

export class Notices {
  /** `open` shows the panel. */
  constructor(slices: Slices, actions: Actions, nameOf: (kernel: string) => string, open: () => void) {
    this._slices = slices;
    this._actions = actions;
    this._nameOf = nameOf;
    this._open = open;
    slices.changed.connect(() => this._tell());
  }

  private _tell(): void {
    const { kernels } = this._slices.status;
    const own: [string, INotice][] = [];
    const more: string[] = [];
    for (const kernel of kernels) {
      const id = kernel.kernel_id;
      const notice = this._of(kernel);
      this._before.set(id, kernel.state);
      if (!notice) {
        this._close(id);
      } else if (own.length < MOST) {
        own.push([id, notice]);
      } else {
        this._close(id);
        if (notice.autoClose === false) {
          more.push(id);
        }
      }
    }
    own.forEach(([id, notice]) => this._show(id, notice));
    if (more.length) {
      this._show(SUMMARY, {
        kind: SUMMARY,
        message: __('More slices that wait or are gone: %1.', more.length),
        type: 'info',
        autoClose: false,
        actions: [{ label: __('Show all'), callback: () => this._open() }]
      });
    } else {
      this._close(SUMMARY);
    }
    for (const id of [...this._before.keys()]) {
      if (!this._slices.kernel(id)) {
        this._before.delete(id);
        this._kept.delete(id);
        this._close(id);
      }
    }
  }

  /** What there is to say of a kernel's slice now. */
  private _of(kernel: IKernelStatus): INotice | null {
    const id = kernel.kernel_id;
    const shown = this._shown.get(id);
    const before = this._before.get(id);
    const name = this._nameOf(id);
    const what = name ? __('%1 (%2)', kernel.what, name) : kernel.what;
    const actions = this._actions.of(kernel).slice(0, 1);
    const asActions = actions.map(one => ({ label: one.label, callback: () => one.run() }));
    if (kernel.state === 'waiting') {
      if (!kernel.position) {
        return shown?.kind === 'waiting' ? { ...WAITING, message: shown.message, actions: asActions } : null; // most slices come at once
      }
      const about = kernel.estimate_seconds >= 0 ? __(', about %1 to go', duration(kernel.estimate_seconds)) : '';
      return { ...WAITING, message: __('%1: position %2 in the queue%3', what, kernel.position, about), actions: asActions };
    }
    if (kernel.state === 'live') {
      if (kernel.notice && kernel.notice !== this._kept.get(id)) {
        return {
          kind: `notice ${kernel.notice}`,
          message: sentence(`${what}: ${said(kernel.notice)}`),
          type: 'warning',
          autoClose: false,
          actions: kernel.may_keep ? [{ label: __('Keep it'), callback: event => this._keep(event, id, kernel.notice) }] : []
        };
      }
      if (kernel.notice) {
        return { kind: 'kept', message: __('%1 is kept.', what), type: 'success', autoClose: BRIEFLY, actions: [] };
      }
      this._kept.delete(id);
      if (shown?.kind === 'waiting') {
        return { kind: 'here', message: __('%1 is here.', what), type: 'success', autoClose: BRIEFLY, actions: [] };
      }
      return shown?.brief ? { kind: shown.kind, message: shown.message, type: 'success', autoClose: BRIEFLY, actions: [] } : null;
    }
    this._kept.delete(id);
    if (kernel.state === 'none' && (shown?.kind === 'left' || before === 'waiting')) {
      const stays = kernel.needs_restart;
      const message = sentence(`${what}: ${said(kernel.sentence)}`);
      return { kind: 'left', message, type: 'info', autoClose: stays ? false : BRIEFLY, actions: stays ? asActions : [] };
    }
    const over = kernel.state === 'ended' && (shown || before === 'live' || before === 'waiting');
    if (!over) {
      return null;
    }
    const lost = before === 'live' || shown?.kind === 'over';
    return {
      kind: lost ? 'over' : 'refused',
      message: sentence(lost ? __('%1 is gone: %2', what, said(kernel.sentence)) : __('%1: no slice: %2', what, said(kernel.sentence))),
      type: 'warning',
      autoClose: false,
      actions: asActions
    };
  }

  /** Keep a slice; the notification stays where it is, and says so. */
  private _keep(event: MouseEvent, id: string, notice: string): void {
    event.preventDefault();
    void this._actions.keep(id).then(done => {
      if (done) {
        this._kept.set(id, notice);
        this._tell();
      }
    });
  }

  private _show(key: string, notice: INotice): void {
    const { kind, message, type, autoClose, actions } = notice;
    const shown = this._shown.get(key);
    if (shown && shown.kind === kind && shown.message === message) {
      return; // an update would bring back what somebody has closed
    }
    const next = { kind, message, brief: autoClose !== false };
    if (shown && Notification.update({ id: shown.id, message, type, autoClose, actions })) {
      this._shown.set(key, { id: shown.id, ...next });
    } else if (shown?.kind === kind) {
      shown.message = message; // closed by its reader, who knows
    } else {
      this._shown.set(key, { id: Notification.emit(message, type, { autoClose, actions }), ...next });
    }
  }

  private _close(key: string): void {
    const shown = this._shown.get(key);
    if (shown) {
      this._shown.delete(key);
      Notification.dismiss(shown.id);
    }
  }

  private _slices: Slices;
  private _actions: Actions;
  private _nameOf: (kernel: string) => string;
  private _open: () => void;
  private _shown = new Map<string, IShown>();
  private _before = new Map<string, string>();
  private _kept = new Map<string, string>(); // notices that were answered with “Keep it”
}

const WAITING = { kind: 'waiting', type: 'in-progress' as const, autoClose: false as const };
