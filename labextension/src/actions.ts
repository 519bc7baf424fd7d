// What a person may do with a slice, alike in the panel, the status bar and notifications: asked first where something is lost.
import { Dialog, ISessionContext, Notification, showDialog } from '@jupyterlab/apputils';
import { Kernel } from '@jupyterlab/services';
import { Widget } from '@lumino/widgets';
import { askForResize } from './dialogs';
import { IKernelStatus, IOtherLease } from './kernel_status';
import { size, Slices } from './model';
import { __, sentence } from './texts';

export interface IAction {
  label: string;
  run: () => void;
}

/** The notebooks and consoles of this page, and their kernels. */
export interface IKernels {
  /** The name of the notebook or console of a kernel; empty where there is none. */
  nameOf(kernel: string): string;
  /** The session of a kernel that this page shows. */
  sessionOf(kernel: string): ISessionContext | undefined;
  /** A connection to a kernel that no open notebook has. */
  connect(kernel: string): Kernel.IKernelConnection;
}

export class Actions {
  constructor(slices: Slices, kernels: IKernels) {
    this._slices = slices;
    this._kernels = kernels;
  }

  /** What may be done with a kernel's slice now, the likeliest first. */
  of(kernel: IKernelStatus): IAction[] {
    const action = (label: string, act: () => Promise<void>) => ({ label, run: () => void this._try(act) });
    const act = (what: string, body: object = {}) => () => this._slices.act(kernel.kernel_id, what, body);
    if (kernel.state === 'waiting') {
      return [action(__('Leave the queue'), act('cancel'))];
    }
    if (kernel.state !== 'live') {
      return kernel.needs_restart
        ? [action(__('Restart with a slice…'), () => this.restart(kernel))]
        : [action(__('Acquire'), act('acquire'))];
    }
    const actions = [
      action(__('Resize…'), () => this._resize(kernel)),
      action(__('Release…'), () => this._release(kernel))
    ];
    if (kernel.trouble === 'fault' || kernel.needs_restart) {
      actions.unshift(action(__('Restart the kernel…'), () => this.restart(kernel)));
    } else if (kernel.trouble === 'memory' && kernel.larger_share) {
      actions.shift();
      actions.unshift(action(__('Resize to %1', kernel.larger_share), act('resize', { share: kernel.larger_share })));
    }
    return actions;
  }

  /** Keep an idle slice. */
  async keep(kernel: string): Promise<boolean> {
    return this._try(() => this._slices.act(kernel, 'keep'));
  }

  /** Restart a kernel, with a slice where it has none; nothing is restarted where the pool refuses one. */
  async restart(kernel: IKernelStatus): Promise<void> {
    const id = kernel.kernel_id;
    const live = kernel.state === 'live';
    const name = this._kernels.nameOf(id);
    const sure = await this._ask(
      name ? __('Restart the kernel of %1?', name) : __('Restart the kernel?'),
      [
        __('Its variables are lost, in main memory and on the GPU.'),
        live
          ? __('It keeps its slice, %1.', kernel.what)
          : __('It asks for %1 first. If all are taken, it starts all the same, and its first use of CUDA waits in the queue.', kernel.what)
      ],
      __('Restart')
    );
    if (!sure) {
      return;
    }
    if (!live) {
      await this._slices.act(id, 'acquire');
    }
    const session = this._kernels.sessionOf(id);
    if (session) {
      await session.restartKernel();
    } else {
      await this._kernels.connect(id).restart();
    }
    await this._slices.refresh();
  }

  /** End the lease of another program of this person. */
  releaseOther(other: IOtherLease): void {
    void this._try(async () => {
      const [what, server] = [other.description || __('a program'), other.server];
      const lost = other.used_bytes
        ? __('It has %1 on the GPU, which are lost.', size(other.used_bytes))
        : __('It has nothing on the GPU now.');
      const sure = await this._ask(
        __('Release the slice of another program?'),
        [
          server ? __('“%1” on %2 holds this slice.', what, server) : __('“%1” holds this slice.', what),
          lost,
          __('A program that uses it fails at its next use of CUDA.')
        ],
        __('Release')
      );
      if (sure) {
        await this._slices.endLease(other.lease_id);
      }
    });
  }

  private async _release(kernel: IKernelStatus): Promise<void> {
    await this._slices.refresh(); // what is lost now, not some seconds ago
    const now = this._slices.kernel(kernel.kernel_id) ?? kernel;
    const name = this._kernels.nameOf(kernel.kernel_id);
    const lost = now.used_bytes
      ? __('%1 on the GPU are lost.', size(now.used_bytes))
      : __('Nothing is on the GPU now.');
    const sure = await this._ask(
      name ? __('Release %1 of %2?', now.what, name) : __('Release %1?', now.what),
      [
        lost,
        __('The kernel goes on, and its variables in main memory stay. If it has used CUDA, it must be restarted before it can use a slice again.')
      ],
      __('Release')
    );
    if (sure) {
      await this._slices.act(kernel.kernel_id, 'release');
    }
  }

  private async _resize(kernel: IKernelStatus): Promise<void> {
    const wanted = await askForResize(kernel);
    if (wanted) {
      await this._slices.act(kernel.kernel_id, 'resize', { share: wanted.share });
    }
  }

  private async _ask(title: string, sentences: string[], button: string): Promise<boolean> {
    const body = new Widget();
    body.addClass('gpukernel-question');
    for (const one of sentences) {
      const paragraph = document.createElement('p');
      paragraph.textContent = one;
      body.node.append(paragraph);
    }
    const buttons = [Dialog.cancelButton({ label: __('Cancel') }), Dialog.warnButton({ label: button })];
    // Enter does nothing that cannot be undone.
    return (await showDialog({ title, body, buttons, defaultButton: 0 })).button.accept;
  }

  private async _try(act: () => Promise<void>): Promise<boolean> {
    try {
      await act();
      return true;
    } catch (error) {
      Notification.error(sentence((error as Error).message), { autoClose: 8000 });
      return false;
    }
  }

  private _slices: Slices;
  private _kernels: IKernels;
}

/** What to do about a trouble of a kernel with its slice, in one sentence; empty where there is none. */
export function nextStep(kernel: IKernelStatus): string {
  if (kernel.trouble === 'fault') {
    return __('A fault has ended this kernel’s work on the GPU. Restart the kernel: its slice is kept, what was on the GPU is lost.');
  }
  if (kernel.needs_restart && kernel.state === 'live') {
    return __('Restart the kernel: its libraries still hold what they had on the slice that is gone.');
  }
  if (kernel.needs_restart && kernel.state !== 'waiting') {
    return __('This kernel has used CUDA before: it must be restarted to use a slice again.');
  }
  if (kernel.trouble === 'memory') {
    const has = size(kernel.memory_bytes);
    if (kernel.larger_share) {
      return __('Out of memory: this slice has %1. “%gpu resize %2” makes it larger.', has, kernel.larger_share);
    }
    return kernel.memory_bytes < kernel.device_memory_bytes
      ? __('Out of memory: this slice has %1. Your quotas allow no larger one: use less, for example smaller batches.', has)
      : __('Out of memory: this slice has %1. It is the whole GPU: use less, for example smaller batches.', has);
  }
  return '';
}
