/* Attention of few heads over a list of keys for each query, with a sink. See attention.py for the formula.
 *
 * Compiled several times for different instruction sets; the loader picks one. Built without -ffast-math: NaN and
 * infinities must reach the output. `omp simd` alone allows the sums to be reordered.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static float dot(const float *a, const float *b, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

static void add_scaled(float *out, const float *values, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] += factor * values[i];
}

/* Scores to probabilities, in place; without any key or weight left, all are 0. */
static void softmax_with_sink(float *scores, int64_t n, float sink) {
  float highest = sink;
  for (int64_t k = 0; k < n; k++)
    if (scores[k] > highest) highest = scores[k];
  if (highest == -INFINITY) highest = 0.0f;
  float sum = expf(sink - highest);
  for (int64_t k = 0; k < n; k++) {
    scores[k] = expf(scores[k] - highest);
    sum += scores[k];
  }
  float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int64_t k = 0; k < n; k++) scores[k] *= inverse;
}

/* queries [tokens, heads, dim], keys [any, dim], indices [tokens, width] (-1 = none), sinks [heads],
 * out [tokens, heads, dim]. Returns 0, or 1 without memory. */
int ds4_sparse_attention(const float *queries, const float *keys, const int32_t *indices, const float *sinks,
                         float *out, int64_t tokens, int64_t heads, int64_t width, int64_t dim, float scale) {
  int failed = 0;
#pragma omp parallel reduction(| : failed)
  {
    float *scores = malloc(sizeof(float) * (size_t)(heads * width + 1));
    int32_t *used = malloc(sizeof(int32_t) * (size_t)(width + 1));
    failed = scores == NULL || used == NULL;
#pragma omp for schedule(dynamic, 4)
    for (int64_t t = 0; t < tokens; t++) {
      if (failed) continue;
      int64_t n = 0;
      for (int64_t k = 0; k < width; k++)
        if (indices[t * width + k] >= 0) used[n++] = indices[t * width + k];
      const float *query = queries + t * heads * dim;
      float *result = out + t * heads * dim;
      for (int64_t k = 0; k < n; k++)
        for (int64_t h = 0; h < heads; h++)
          scores[h * n + k] = scale * dot(query + h * dim, keys + (int64_t)used[k] * dim, dim);
      for (int64_t h = 0; h < heads; h++) softmax_with_sink(scores + h * n, n, sinks[h]);
      for (int64_t i = 0; i < heads * dim; i++) result[i] = 0.0f;
      for (int64_t k = 0; k < n; k++)
        for (int64_t h = 0; h < heads; h++)
          add_scaled(result + h * dim, keys + (int64_t)used[k] * dim, scores[h * n + k], dim);
    }
    free(scores);
    free(used);
  }
  return failed;
}
