/* Generates sound with a WaveNet, a few stretches side by side: one sample of all layers after the other.

   Weights come packed by 32 outputs: for every such block, input after input, its 32 weights. Everything is float32.
   Nothing here allocates, locks or is shared between calls, so that several threads can each make stretches of their own. */

typedef float v8 __attribute__((vector_size(32), aligned(4)));

enum { BLOCK = 32, ROWS = 4, MOST = 8, WINDOW = 5, HOP = 256 };

typedef struct {
    int layers, channels, gate, skip, mixtures, outputs; /* outputs: 3 x mixtures, rounded up to whole blocks */
    const int *dilations;
    const float *first, *first_bias;       /* channels */
    const float *const *hear, *const *both; /* a layer: 3 x channels -> gate; gate / 2 -> channels + skip */
    const float *const *both_bias;
    const float *inner, *inner_bias, *outer, *outer_bias;
} Network;

static inline v8 load(const float *from) { return *(const v8 *)from; }
static inline void store(float *to, v8 value) { *(v8 *)to = value; }
static inline v8 all(float value) { return (v8){value, value, value, value, value, value, value, value}; }

/* to (outputs) += from (inputs) times the packed weights; in two sums, as one would wait for itself */
static void one_row(float *to, const float *from, const float *weights, int inputs, int outputs) {
    for (int first = 0; first < outputs; first += BLOCK, weights += (long)inputs * BLOCK) {
        v8 even[4], odd[4];
        for (int v = 0; v < 4; v++) even[v] = load(to + first + 8 * v), odd[v] = all(0);
        for (int k = 0; k < inputs; k += 2) {
            const v8 x = all(from[k]), y = all(from[k + 1]);
            const float *at = weights + (long)k * BLOCK;
            for (int v = 0; v < 4; v++) even[v] += x * load(at + 8 * v), odd[v] += y * load(at + BLOCK + 8 * v);
        }
        for (int v = 0; v < 4; v++) store(to + first + 8 * v, even[v] + odd[v]);
    }
}

/* the same for four rows and one block */
static void four_rows(float *to, const float *from, const float *weights, int inputs, int stride) {
    for (int first = 0; first < BLOCK; first += 16) {
        v8 sum[ROWS][2];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < 2; v++) sum[r][v] = load(to + r * stride + first + 8 * v);
        for (int k = 0; k < inputs; k++) {
            const v8 left = load(weights + (long)k * BLOCK + first), right = load(weights + (long)k * BLOCK + first + 8);
            for (int r = 0; r < ROWS; r++) {
                const v8 x = all(from[r * inputs + k]);
                sum[r][0] += x * left;
                sum[r][1] += x * right;
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < 2; v++) store(to + r * stride + first + 8 * v, sum[r][v]);
    }
}

static void product(float *to, const float *from, const float *weights, int inputs, int outputs, int rows) {
    if (rows == 1) {
        one_row(to, from, weights, inputs, outputs);
        return;
    }
    for (int first = 0; first < outputs; first += BLOCK, weights += (long)inputs * BLOCK)
        for (int row = 0; row < rows; row += ROWS) /* the block's weights stay in the nearest cache meanwhile */
            four_rows(to + row * outputs + first, from + row * inputs, weights, inputs, outputs);
}

/* e^x to float32's precision: 2^n times a polynomial */
static inline float exponential(float x) {
    union { float f; int i; } scale;
    x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
    float n = x * 1.44269504f;
    n = (float)(int)(n + (n < 0 ? -0.5f : 0.5f));
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    scale.i = ((int)n + 127) << 23;
    return p * scale.f;
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

/* Makes `rows` stretches (1, 4 or 8) of `frames` frames each: `found` is (rows, frames x HOP).

   `conditioning` (rows, frames + WINDOW - 1, layers, gate) holds what the frames give to every layer, and `spread`
   (frames, HOP, WINDOW) how much of each reaches a sample. `which` (samples, rows, mixtures) and `where` (samples, rows)
   are the draws, as numbers to be added to a logit and to be multiplied by a scale. `room` is scratch, filled with 0. */
void generate(const Network *net, int rows, int frames, const float *conditioning, const float *biases, const float *spread,
              const float *which, const float *where, float *found, float *room) {
    const int channels = net->channels, gate = net->gate, half = gate / 2, skip = net->skip, both = channels + skip;
    const float root = 0.70710678118654752f;
    float *x = room;
    float *past = x + rows * channels;   /* rows x 3 channels */
    float *z = past + rows * 3 * channels;
    float *h = z + rows * gate;
    float *out = h + rows * half;        /* rows x both */
    float *total = out + rows * both;
    float *hidden = total + rows * skip;
    float *outputs = hidden + rows * skip;
    float *memory = outputs + rows * net->outputs;
    float sample[MOST] = {0};

    for (long t = 0; t < (long)frames * HOP; t++) {
        const int frame = (int)(t / HOP);
        const float *weights = spread + t * WINDOW;
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < channels; c++) x[r * channels + c] = sample[r] * net->first[c] + net->first_bias[c];
        for (int i = 0; i < rows * skip; i++) total[i] = 0;
        float *ring = memory;
        for (int layer = 0; layer < net->layers; layer++) {
            const int dilation = net->dilations[layer];
            float *oldest = ring + (t % (2 * dilation)) * rows * channels;
            const float *older = ring + ((t + dilation) % (2 * dilation)) * rows * channels;
            for (int r = 0; r < rows; r++) {
                float *to = past + r * 3 * channels;
                for (int c = 0; c < channels; c++) {
                    to[c] = oldest[r * channels + c];
                    to[channels + c] = older[r * channels + c];
                    to[2 * channels + c] = x[r * channels + c];
                }
                const float *near = conditioning + (((long)r * (frames + WINDOW - 1) + frame) * net->layers + layer) * gate;
                const long next = (long)net->layers * gate;
                const float *bias = biases + layer * gate;
                for (int g = 0; g < gate; g++)
                    z[r * gate + g] = bias[g] + weights[0] * near[g] + weights[1] * near[next + g] + weights[2] * near[2 * next + g]
                                      + weights[3] * near[3 * next + g] + weights[4] * near[4 * next + g];
            }
            for (int i = 0; i < rows * channels; i++) oldest[i] = x[i];
            ring += 2 * dilation * rows * channels;
            product(z, past, net->hear[layer], 3 * channels, gate, rows);
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < half; c++)
                    h[r * half + c] = (2.0f * sigmoid(2.0f * z[r * gate + c]) - 1.0f) * sigmoid(z[r * gate + half + c]);
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < both; c++) out[r * both + c] = net->both_bias[layer][c];
            product(out, h, net->both[layer], half, both, rows);
            for (int r = 0; r < rows; r++) {
                for (int c = 0; c < channels; c++)
                    x[r * channels + c] = out[r * both + c] + root * x[r * channels + c];
                for (int c = 0; c < skip; c++) total[r * skip + c] += out[r * both + channels + c];
            }
        }
        for (int i = 0; i < rows * skip; i++) total[i] = total[i] > 0 ? total[i] : 0;
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < skip; c++) hidden[r * skip + c] = net->inner_bias[c];
        product(hidden, total, net->inner, skip, skip, rows);
        for (int i = 0; i < rows * skip; i++) hidden[i] = hidden[i] > 0 ? hidden[i] : 0;
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < net->outputs; c++) outputs[r * net->outputs + c] = net->outer_bias[c];
        product(outputs, hidden, net->outer, skip, net->outputs, rows);
        for (int r = 0; r < rows; r++) {
            const float *logits = outputs + r * net->outputs, *chance = which + (t * rows + r) * net->mixtures;
            int best = 0;
            for (int m = 1; m < net->mixtures; m++)
                if (logits[m] + chance[m] > logits[best] + chance[best]) best = m;
            const float log_scale = logits[2 * net->mixtures + best];
            float drawn = logits[net->mixtures + best] + exponential(log_scale < -16.0f ? -16.0f : log_scale) * where[t * rows + r];
            drawn = drawn > 1.0f ? 1.0f : drawn < -1.0f ? -1.0f : drawn;
            sample[r] = found[r * (long)frames * HOP + t] = drawn;
        }
    }
}
