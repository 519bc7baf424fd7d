// The slice of the notebook in front: in JupyterLab's status bar, and in the toolbar of Notebook, which has no status bar.
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { inWords, percent, Slices } from './model';

export class StatusItem extends Widget {
  constructor(slices: Slices, current: () => string | undefined, open: () => void) {
    super();
    this.addClass('gpukernel-status');
    this._slices = slices;
    this._current = current;
    this._bar.className = 'gpukernel-status-bar';
    this._fill.className = 'gpukernel-status-fill';
    this._bar.appendChild(this._fill);
    this._cancel.className = 'gpukernel-status-cancel';
    this._cancel.textContent = 'Cancel';
    this._cancel.title = 'Leave the queue';
    this._cancel.onclick = event => {
      event.stopPropagation();
      const kernel = this._slices.kernel(this._current());
      if (kernel) {
        void this._slices.act(kernel.kernel_id, 'cancel');
      }
    };
    this.node.append(this._text, this._bar, this._cancel);
    this.node.onclick = open;
    slices.changed.connect(this.refresh, this);
    this.refresh();
  }

  /** Whether there is anything to show, and when that changes: the status bar hides what is not active. */
  get active(): boolean {
    return this._active;
  }

  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
  }

  refresh(): void {
    const kernel = this._slices.kernel(this._current());
    if (this._active !== Boolean(kernel)) {
      this._active = Boolean(kernel);
      this._activeChanged.emit();
    }
    this.setHidden(!kernel);
    if (!kernel) {
      return;
    }
    const memory = kernel.memory_bytes ? kernel.used_bytes / kernel.memory_bytes : 0;
    this._text.textContent = inWords(kernel);
    this._bar.hidden = kernel.state !== 'live';
    this._cancel.hidden = kernel.state !== 'waiting';
    this._fill.style.width = percent(memory).replace(' ', '');
    this.node.dataset.state = kernel.state;
    this.node.title =
      kernel.state === 'live'
        ? `${kernel.device_name} (${kernel.device}): ${percent(memory)} of the memory in use. Click for all slices.`
        : kernel.words || kernel.sentence || 'This kernel holds no slice now.';
  }

  dispose(): void {
    if (!this.isDisposed) {
      this._slices.changed.disconnect(this.refresh, this);
      super.dispose();
    }
  }

  private _active = false;
  private _activeChanged = new Signal<this, void>(this);
  private _slices: Slices;
  private _current: () => string | undefined;
  private _text = document.createElement('span');
  private _bar = document.createElement('span');
  private _fill = document.createElement('span');
  private _cancel = document.createElement('button');
}
