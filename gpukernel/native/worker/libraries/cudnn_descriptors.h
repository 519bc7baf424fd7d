// cuDNN's descriptors in the worker: for the time of one call, made from what the program's has.
#pragma once

#include "libraries/cudnn/recurrent.h"
#include "worker/libraries/libraries.h"

namespace gpukernel::worker {

template <class Form>
class Described {
  public:
    Described(LibraryArguments& in, bool optional);
    ~Described() {
        if (made_) destroy_(made_);
    }
    Described(const Described&) = delete;

    int status() const { return status_; }
    void* get() const { return made_; }
    const Form& form() const { return form_; }

  private:
    Form form_{};
    void* made_ = nullptr;
    int (*destroy_)(void*) = nullptr;
    int status_ = 0;
};

// Of dropout: without states there is none.
class DescribedDropout {
  public:
    explicit DescribedDropout(const MathLibrary& library) : library_(library) {}
    ~DescribedDropout();
    DescribedDropout(const DescribedDropout&) = delete;
    // `fresh`: makes its states on the device.
    int make(LibraryArguments& in, const libraries::cudnn::DropoutForm& form, bool fresh);
    void* get() const { return made_; }

  private:
    const MathLibrary& library_;
    void* made_ = nullptr;
};
template <>
class Described<libraries::cudnn::RecurrentForm> {
  public:
    Described(LibraryArguments& in, bool optional);
    ~Described();
    Described(const Described&) = delete;
    int status() const { return status_; }
    void* get() const { return made_; }

  private:
    const MathLibrary& library_;
    DescribedDropout dropout_;
    void* made_ = nullptr;
    int status_ = 0;
};
template <>
class Described<libraries::cudnn::SequencesForm> {
  public:
    Described(LibraryArguments& in, bool optional);
    ~Described();
    Described(const Described&) = delete;
    int status() const { return status_; }
    void* get() const { return made_; }
    const libraries::cudnn::SequencesForm& form() const { return form_; }

  private:
    const MathLibrary& library_;
    libraries::cudnn::SequencesForm form_{};
    void* made_ = nullptr;
    int status_ = 0;
};

inline size_t factor(const Described<libraries::cudnn::TensorLayout>& tensor) {
    return libraries::cudnn::factor_bytes(tensor.form().type);
}
inline size_t value_bytes(const Described<libraries::cudnn::TensorLayout>& tensor) {
    return libraries::cudnn::element_bytes(tensor.form().type);
}

inline int64_t ctc_batch(const Described<libraries::cudnn::TensorLayout>& tensor) {
    return libraries::cudnn::ctc_batch(&tensor.form());
}
inline size_t ctc_costs(const Described<libraries::cudnn::TensorLayout>& tensor) {
    return libraries::cudnn::ctc_costs(&tensor.form());
}
inline size_t ctc_lengths(const Described<libraries::cudnn::TensorLayout>& tensor) {
    return libraries::cudnn::ctc_lengths(&tensor.form());
}
inline int64_t ctc_labels(const Described<libraries::cudnn::TensorLayout>& tensor, const HostInts& lengths) {
    return lengths.count() == ctc_batch(tensor)
               ? libraries::cudnn::sum_of_lengths(lengths.get(), lengths.count())
               : -1;
}

// Whether a tensor or filter lies in the lease's memory as a whole; null does.
bool covered(const LibraryArguments& in, const Described<libraries::cudnn::TensorLayout>& tensor,
             const void* at);
bool covered(const LibraryArguments& in, const Described<libraries::cudnn::FilterLayout>& filter,
             const void* at);
bool covered(const LibraryArguments& in, const Described<libraries::cudnn::SequencesForm>& sequences,
             const void* at);
// Forms of operations stand beside addresses, too, and say nothing about them.
template <class Form>
bool covered(const LibraryArguments&, const Described<Form>&, const void*) {
    return true;
}

}  // namespace gpukernel::worker
