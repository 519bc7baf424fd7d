// The slice of the notebook in front: in JupyterLab's status bar, and in the toolbar of Notebook, which has no status bar.
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { Actions, nextStep } from './actions';
import { inWords, percent, Slices } from './model';
import { __, said } from './texts';

export class StatusItem extends Widget {
  constructor(slices: Slices, actions: Actions, current: () => string | undefined, open: () => void) {
    super();
    this.addClass('gpukernel-status');
    this._slices = slices;
    this._actions = actions;
    this._current = current;
    this._bar.className = 'gpukernel-status-bar';
    this._fill.className = 'gpukernel-status-fill';
    this._bar.appendChild(this._fill);
    this._show.className = 'gpukernel-status-show';
    this._show.append(this._text, this._bar);
    this._show.onclick = open;
    this._act.className = 'gpukernel-status-act';
    this._act.onclick = () => {
      const kernel = this._slices.kernel(this._current());
      if (kernel) {
        this._actions.of(kernel)[0].run();
      }
    };
    this.node.append(this._show, this._act);
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
    const step = nextStep(kernel);
    this._text.textContent = inWords(kernel);
    this._bar.hidden = kernel.state !== 'live';
    // What holds a slice and is well needs no button here.
    this._act.hidden = kernel.state === 'live' && !step;
    this._act.textContent = this._actions.of(kernel)[0].label;
    this._fill.style.width = percent(memory).replace(' ', '');
    this.node.dataset.state = step && kernel.state === 'live' ? 'trouble' : kernel.state;
    this._show.title =
      step ||
      (kernel.state === 'live'
        ? __('%1 (%2): %3 of the memory in use. Click for all slices.', kernel.device_name, kernel.device, percent(memory))
        : said(kernel.sentence) || inWords(kernel));
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
  private _actions: Actions;
  private _current: () => string | undefined;
  private _show = document.createElement('button');
  private _text = document.createElement('span');
  private _bar = document.createElement('span');
  private _fill = document.createElement('span');
  private _act = document.createElement('button');
}
