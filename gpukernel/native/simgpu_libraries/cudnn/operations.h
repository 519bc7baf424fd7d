// What the functions outside of the backend API compute, by the names in libraries/cudnn/calls.txt.
#pragma once

#include <cstring>
#include <vector>

#include "libraries/cudnn/recurrent.h"
#include "simgpu_libraries/cudnn/tensor.h"

namespace gpukernel::simgpu_libraries::cudnn {

// alpha or beta, which lie on the host; or one element, whose type its tensor says.
class HostNumber {
  public:
    HostNumber(const Handle&, const void* from, size_t bytes) {
        std::memcpy(bytes_, from, std::min(bytes, sizeof bytes_)), size_ = bytes;
    }
    operator double() const {
        if (size_ == sizeof(double)) return of<double>();
        return static_cast<double>(of<float>());
    }
    template <class T>
    T of() const {
        T value;
        std::memcpy(&value, bytes_, sizeof value);
        return value;
    }
    const char* bytes() const { return bytes_; }

  private:
    char bytes_[8] = {};
    size_t size_ = 0;
};
class HostSize {
  public:
    HostSize(const Handle&, void* to, size_t) : to_(static_cast<size_t*>(to)) {}
    int set(size_t value) const { return *to_ = value, SUCCESS; }

  private:
    size_t* to_;
};

// As generated code calls them.
using Scalar = HostNumber;
using Result = HostSize;

using Ints = std::vector<int>;  // an array on the host
inline bool all_there(const int* values, int64_t count) { return count >= 0 && (values || !count); }

using Layout = const TensorLayout*;
Tensor tensor_of(Layout layout, uint64_t address);
Tensor tensor_of(const FilterLayout* filter, uint64_t address);

// --- elements ---
int transform(Context, Scalar alpha, Layout x_layout, uint64_t x, Scalar beta, Layout y_layout, uint64_t y);
int op_tensor(Context, const TensorOperation*, Scalar alpha1, Layout a_layout, uint64_t a, Scalar alpha2,
              Layout b_layout, uint64_t b, Scalar beta, Layout c_layout, uint64_t c);
int scale_tensor(Context, Layout y_layout, uint64_t y, Scalar alpha);
int set_tensor(Context, Layout y_layout, uint64_t y, Scalar value);
int reduce_tensor(Context, const TensorReduction*, uint64_t indices, size_t, uint64_t workspace, size_t,
                  Scalar alpha, Layout a_layout, uint64_t a, Scalar beta, Layout c_layout, uint64_t c);
int reduction_workspace(Context, const TensorReduction*, Layout a, Layout c, Result bytes);
int activation_forward(Context, const ActivationForm*, Scalar alpha, Layout x_layout, uint64_t x, Scalar beta,
                       Layout y_layout, uint64_t y);
int activation_backward(Context, const ActivationForm*, Scalar alpha, Layout y_layout, uint64_t y,
                        Layout dy_layout, uint64_t dy, Layout x_layout, uint64_t x, Scalar beta,
                        Layout dx_layout, uint64_t dx);
int softmax_forward(Context, int algorithm, int mode, Scalar alpha, Layout x_layout, uint64_t x, Scalar beta,
                    Layout y_layout, uint64_t y);
int softmax_backward(Context, int algorithm, int mode, Scalar alpha, Layout y_layout, uint64_t y,
                     Layout dy_layout, uint64_t dy, Scalar beta, Layout dx_layout, uint64_t dx);

// --- convolutions ---
int convolution_forward(Context, Scalar alpha, Layout x_layout, uint64_t x, const FilterLayout*, uint64_t w,
                        const ConvolutionForm*, int algorithm, uint64_t workspace, size_t bytes, Scalar beta,
                        Layout y_layout, uint64_t y);
int convolution_to_data(Context, Scalar alpha, const FilterLayout*, uint64_t w, Layout dy_layout, uint64_t dy,
                        const ConvolutionForm*, int algorithm, uint64_t workspace, size_t bytes, Scalar beta,
                        Layout dx_layout, uint64_t dx);
int convolution_to_filter(Context, Scalar alpha, Layout x_layout, uint64_t x, Layout dy_layout, uint64_t dy,
                          const ConvolutionForm*, int algorithm, uint64_t workspace, size_t bytes,
                          Scalar beta, const FilterLayout*, uint64_t dw);
int convolution_bias_activation(Context, Scalar alpha1, Layout x_layout, uint64_t x, const FilterLayout*,
                                uint64_t w, const ConvolutionForm*, int algorithm, uint64_t workspace,
                                size_t bytes, Scalar alpha2, Layout z_layout, uint64_t z, Layout bias_layout,
                                uint64_t bias, const ActivationForm*, Layout y_layout, uint64_t y);
int convolution_to_bias(Context, Scalar alpha, Layout dy_layout, uint64_t dy, Scalar beta, Layout db_layout,
                        uint64_t db);
int forward_workspace(Context, Layout x, const FilterLayout* w, const ConvolutionForm*, Layout y,
                      int algorithm, Result bytes);
int to_data_workspace(Context, const FilterLayout* w, Layout dy, const ConvolutionForm*, Layout dx,
                      int algorithm, Result bytes);
int to_filter_workspace(Context, Layout x, Layout dy, const ConvolutionForm*, const FilterLayout* dw,
                        int algorithm, Result bytes);

// --- pooling ---
int pooling_forward(Context, const PoolingForm*, Scalar alpha, Layout x_layout, uint64_t x, Scalar beta,
                    Layout y_layout, uint64_t y);
int pooling_backward(Context, const PoolingForm*, Scalar alpha, Layout y_layout, uint64_t y, Layout dy_layout,
                     uint64_t dy, Layout x_layout, uint64_t x, Scalar beta, Layout dx_layout, uint64_t dx);

// --- normalisation ---
int batch_norm_inference(Context, int mode, Scalar alpha, Scalar beta, Layout x_layout, uint64_t x,
                         Layout y_layout, uint64_t y, Layout channels, uint64_t scale, uint64_t bias,
                         uint64_t mean, uint64_t variance, double epsilon);
int batch_norm_training(Context, int mode, Scalar alpha, Scalar beta, Layout x_layout, uint64_t x,
                        Layout y_layout, uint64_t y, Layout channels, uint64_t scale, uint64_t bias,
                        double factor, uint64_t running_mean, uint64_t running_variance, double epsilon,
                        uint64_t saved_mean, uint64_t saved_inverse);
int batch_norm_training_ex(Context, int mode, int ops, Scalar alpha, Scalar beta, Layout x_layout, uint64_t x,
                           Layout z_layout, uint64_t z, Layout y_layout, uint64_t y, Layout channels,
                           uint64_t scale, uint64_t bias, double factor, uint64_t running_mean,
                           uint64_t running_variance, double epsilon, uint64_t saved_mean,
                           uint64_t saved_inverse, const ActivationForm*, uint64_t workspace, size_t,
                           uint64_t reserve, size_t);
int batch_norm_backward(Context, int mode, Scalar alpha, Scalar beta, Scalar alpha_parameters,
                        Scalar beta_parameters, Layout x_layout, uint64_t x, Layout dy_layout, uint64_t dy,
                        Layout dx_layout, uint64_t dx, Layout channels, uint64_t scale, uint64_t dscale,
                        uint64_t dbias, double epsilon, uint64_t saved_mean, uint64_t saved_inverse);
int batch_norm_backward_ex(Context, int mode, int ops, Scalar alpha, Scalar beta, Scalar alpha_parameters,
                           Scalar beta_parameters, Layout x_layout, uint64_t x, Layout y_layout, uint64_t y,
                           Layout dy_layout, uint64_t dy, Layout dz_layout, uint64_t dz, Layout dx_layout,
                           uint64_t dx, Layout channels, uint64_t scale, uint64_t bias, uint64_t dscale,
                           uint64_t dbias, double epsilon, uint64_t saved_mean, uint64_t saved_inverse,
                           const ActivationForm*, uint64_t workspace, size_t, uint64_t reserve, size_t);
int batch_norm_training_workspace(Context, int mode, int ops, Layout, Layout, Layout, Layout,
                                  const ActivationForm*, Result bytes);
int batch_norm_backward_workspace(Context, int mode, int ops, Layout, Layout, Layout, Layout, Layout, Layout,
                                  const ActivationForm*, Result bytes);
int batch_norm_reserve(Context, int mode, int ops, const ActivationForm*, Layout, Result bytes);
int lrn_forward(Context, const NormalizationForm*, int mode, Scalar alpha, Layout x_layout, uint64_t x,
                Scalar beta, Layout y_layout, uint64_t y);
int lrn_backward(Context, const NormalizationForm*, int mode, Scalar alpha, Layout y_layout, uint64_t y,
                 Layout dy_layout, uint64_t dy, Layout x_layout, uint64_t x, Scalar beta, Layout dx_layout,
                 uint64_t dx);

// --- recurrent layers ---
int recurrent_forward(Context, const RecurrentForm*, int mode, uint64_t lengths, const SequencesForm*,
                      uint64_t x, const SequencesForm*, uint64_t y, Layout h, uint64_t hx, uint64_t hy,
                      Layout c, uint64_t cx, uint64_t cy, size_t, uint64_t weights, size_t,
                      uint64_t workspace, size_t, uint64_t reserve);
int recurrent_to_data(Context, const RecurrentForm*, uint64_t lengths, const SequencesForm*, uint64_t y,
                      uint64_t dy, const SequencesForm*, uint64_t dx, Layout h, uint64_t hx, uint64_t dhy,
                      uint64_t dhx, Layout c, uint64_t cx, uint64_t dcy, uint64_t dcx, size_t,
                      uint64_t weights, size_t, uint64_t workspace, size_t, uint64_t reserve);
int recurrent_to_weights(Context, const RecurrentForm*, int mode, uint64_t lengths, const SequencesForm*,
                         uint64_t x, Layout h, uint64_t hx, const SequencesForm*, uint64_t y, size_t,
                         uint64_t dweights, size_t, uint64_t workspace, size_t, uint64_t reserve);

// --- connectionist temporal classification ---
int ctc_loss(Context, Layout layout, uint64_t probabilities, const Ints& labels, const Ints& label_lengths,
             const Ints& input_lengths, uint64_t costs, Layout slopes_layout, uint64_t slopes, int algorithm,
             const CtcForm*, uint64_t workspace, size_t);
int ctc_loss_v8(Context, int algorithm, const CtcForm*, Layout layout, uint64_t probabilities,
                uint64_t labels, uint64_t label_lengths, uint64_t input_lengths, uint64_t costs,
                Layout slopes_layout, uint64_t slopes, size_t, uint64_t workspace);
int ctc_workspace(Context, Layout, Layout, const Ints&, const Ints&, const Ints&, int algorithm,
                  const CtcForm*, Result bytes);
int ctc_workspace_v8(Context, int algorithm, const CtcForm*, Layout, Layout, Result bytes);

}  // namespace gpukernel::simgpu_libraries::cudnn
