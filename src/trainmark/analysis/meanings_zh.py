"""What every metric, phase, word and doubt means, in Chinese, as `explain --lang zh` and Chinese pages say it."""

from __future__ import annotations

from typing import NamedTuple


class MetricMeaning(NamedTuple):
    name: str
    """What Chinese tables call it."""
    formula: str
    definition: str


METRICS = {
    "e2e_time": MetricMeaning("端到端时间", "所有阶段之和", "从启动器启动到最慢的 rank 结束最后一个阶段的墙钟时间。"),
    "p_whole": MetricMeaning(
        "整体吞吐",
        "items / (data_wait + compute + evaluate + checkpoint + other)",
        "初始化之后，把等待数据、计算、评估、保存全部算在内，平均每秒训练的样本量。\n\n"
        "在短训练中，一次评估所占的比重远大于完整训练，因此 p_whole 只宜在完整训练之间比较。",
    ),
    "p_train": MetricMeaning(
        "训练吞吐", "items / (data_wait + compute + other)", "不计评估和保存检查点，平均每秒训练的样本量。"
    ),
    "p_core": MetricMeaning(
        "计算吞吐",
        "items / compute",
        "只计前向、反向、梯度通信和优化器更新的时间，平均每秒训练的样本量；等待数据的时间不计在内。\n\n"
        "比较设备时应使用这个数字：它与磁盘和解码速度无关。",
    ),
    "mfu": MetricMeaning(
        "模型算力利用率",
        "p_core x 每个样本的 FLOPs / (设备数 x 峰值)",
        "训练在数学上所需的 FLOPs，占设备理论上最多能完成的 FLOPs 的比例。\n\n"
        "FLOPs 按配方中的网络计数，包括前向和反向，一次乘加计为 2；重复计算和填充部分的计算不计。"
        "峰值取自平台文件中该设备在所要求精度下的稠密算力；在 CPU 上则于训练结束后用大矩阵乘法实测。"
        "超过 100 % 说明精度标注或峰值有误。",
    ),
    "mem": MetricMeaning(
        "显存峰值",
        "各 rank 峰值的最大值 / 2**30",
        "占用最多的 rank 同一时刻占用的最大显存，由设备的内存分配器统计；在 CPU 上是该进程的常驻内存。",
    ),
    "mem_total": MetricMeaning("显存容量", "字节数 / 2**30", "单个设备的显存容量；在 CPU 上是整机内存。"),
    "mem_device": MetricMeaning(
        "设备显存占用峰值",
        "所有设备、所有采样中已用显存的最大值 / 2**30",
        "训练期间占用最满的设备同一时刻的已用显存，以设备自带工具读到的为准。\n\n"
        "它包含分配器保留而未使用的部分、驱动自身的占用，以及其他程序的占用；在 CPU 上是整机已用内存。"
        "两次采样之间的短暂峰值看不到。",
    ),
    "power": MetricMeaning(
        "平均功耗",
        "各设备 energy / 训练时间 的平均值",
        "训练期间单个设备的功耗，对时间和设备取平均。\n\n"
        "从第一步算到最后一步，其间的评估也包含在内。在 CPU 上是一台机器全部处理器的总功耗，不论由谁使用。",
    ),
    "power_peak": MetricMeaning(
        "峰值功耗", "所有设备、所有采样中功耗的最大值", "训练期间任一设备报告过的最高功耗；两次采样之间的情况看不到。"
    ),
    "energy": MetricMeaning(
        "训练能耗",
        "各设备能量计数器的增量（或 power x 时间）之和",
        "从第一步到最后一步全部设备消耗的能量，其间的评估也包含在内。\n\n"
        "设备有能量计数器时取其读数，否则由各次采样的功耗积分得到。机器其余部分"
        "（风扇、磁盘、网络，以及加速卡之外的主机处理器）不计在内。",
    ),
    "energy_per_item": MetricMeaning(
        "单样本能耗", "energy / 所有步的 items", "训练一个样本所消耗的能量：其中包含评估，因此只宜在完整训练之间比较。"
    ),
    "temperature_peak": MetricMeaning(
        "最高温度", "所有设备、所有采样中温度的最大值", "训练期间最热的设备达到的温度，以设备自身的传感器为准。"
    ),
    "throttled": MetricMeaning(
        "降频占比",
        "受影响最重的设备报告自己被降频的采样数 / 采样数",
        "被降频最多的设备，报告自己因过热或功耗上限而减速的频繁程度。",
    ),
    "step_time": MetricMeaning(
        "单步时间", "计入统计的各步 data_wait + compute 的中位数", "居中的一步用了多长时间，包括等待数据。"
    ),
    "step_spread": MetricMeaning(
        "单步时间离散度",
        "计入统计的各步的 (第 95 - 第 5 百分位数) / 中位数",
        "各步之间差别有多大：数值小说明平稳。\n\n若各步的样本量不同，则先折算为平均样本量下所需的时间。",
    ),
    "exchange": MetricMeaning(
        "通信占比",
        "最慢 rank 计入统计的各步中未被掩盖的通信时间 / compute",
        "计算时间中有多少只用在交换梯度上，即反向计算未能掩盖的部分。\n\n"
        "每一步都测量：从最后一个梯度就绪到反向返回为止，其中包含等待较慢 rank 的时间。",
    ),
    "rank_skew": MetricMeaning(
        "rank 偏差",
        "最慢 rank 的 (compute - exchange) / 最快 rank 的 (compute - exchange) - 1",
        "最慢的 rank 自身的计算比最快的多用了多少时间，不含通信。\n\n"
        "若慢的 rank 分到的样本更多，则按同样的样本量折算。",
    ),
    "time_to_target": MetricMeaning(
        "达标时间",
        "首次达到目标的那次评估时的端到端时间",
        "从启动器启动到某次评估首次达到配方规定的目标为止的墙钟时间。",
    ),
    "completed": MetricMeaning(
        "完成比例", "已完成步数 / 计划步数", "计划的训练完成了多少；因达到目标而提前结束时为 100。"
    ),
}
"""By the word the tables use. Names of phases and metrics in a formula stay as they are."""

PHASES = {
    "startup": "从启动器启动到工作进程的第一行代码：解释器、导入模块、进程集合。",
    "init": "打开设备和数据集，构建模型和优化器，编译。",
    "warmup": "曲线平稳之前的训练步。它们保留在记录中；在限定步数或秒数的训练中不计入吞吐；"
    "在完整训练中这一阶段为空，每一步都计入。",
    "data_wait": "训练循环等待下一批数据到达设备的时间：未能被掩盖的读取和拷贝。",
    "compute": "前向、反向、梯度通信和优化器更新。",
    "evaluate": "评估，包括评估自身等待数据的时间。",
    "checkpoint": "保存训练状态。",
    "restart": "各 rank 重新启动过的训练：随之丢失的工作，以及到新工作进程第一行代码为止的时间。任何吞吐都不包含它。",
    "other": "上述各阶段之间剩余的时间；应接近零。",
}

WORDS = {
    "fix_hp": "本次训练的配方与该负载的 reference 配方不同的字段，由程序计算得出，从不手填；没有不同则为 '/'。"
    "bs 即 batch_per_device，lr 即 learning_rate，wd 即 weight_decay。",
    "scaling": "更大的拓扑达到了理想加速的多少：其吞吐 / (设备数的倍数 x 最小拓扑的吞吐)。"
    "弱扩展保持每个设备的 batch 不变，强扩展保持全局 batch 不变；其余条件必须相同。"
    "`trainmark scaling` 给出数值及其置信区间。",
    "configuration": "设备名称和拓扑：节点数 x 每节点设备数。",
    "quality": "训练出的模型有多好，用各负载自己的指标：acc（整个验证集上的 top-1 精度，每个样本只计一次）或 val_loss。"
    "'reached' 和 'missed' 是相对配方的目标而言；被限定步数或秒数的 'short run' 不受目标约束。",
    "val_loss": "Tacotron2 按公开定义的收敛指标：postnet 前后 mel 的平方误差，加上 gate 的交叉熵；"
    "各项都对填充后批次的全部帧取平均，prenet 的 dropout 保持开启。批次和随机数是固定的，因此与卡数无关。",
    "masked_val_loss": "同样的损失，只计每个片段自身的帧，再对片段取平均：填充部分不计。",
    "diagonality": "注意力朗读得有多平稳：1 - 3 x 注意力所在位置与匀速朗读者应在位置之间的平均距离，两者都取 0 到 1。"
    "1 表示匀速朗读，0 表示注意力均匀分散，低于 0 表示注意力停滞。较低的 val_loss 可能掩盖失效的注意力，这个指标不会。",
    "attention_focus": "每一帧最大的注意力权重，对所有帧取平均：1 表示一次只读一个字母。",
    "real_time_factor": "用于 `trainmark speak`：每合成一秒声音所需的计算秒数。低于 1 即快于实时。",
    "interval": "吞吐旁边的 '±0.4 %'：以 95 % 的置信度，长时间训练会得到的值与所示的值相差不超过这个比例。"
    "它考虑了相邻的步彼此相似。",
    "coverage": "p_whole、p_train 和 p_core 涵盖哪些步。完整训练中是全部训练步，与公开表格一致；"
    "在限定步数或秒数的训练中，只涵盖平稳部分。",
    "stability": "同一训练的多次重复之间：p_core 的 (最大 - 最小) / 中位数，以及完成了多少次。",
    "doubts": "对结果应少一分信任的理由：通过检查结果本身发现，并在结果出现的任何地方用文字说明。",
    "artifacts": "训练好的模型留在记录旁、供人查看或试听的文件。它们在计时停止之后生成，因此任何数字都不含其耗时。",
    "telemetry": "与训练并行的进程大约每秒两次对设备和主机的采样：功耗、温度、内存、利用率和频率，"
    "处理器负载及其中属于其他程序的部分。读不到的传感器会注明原因，标为不可用，绝不记为 0。",
    "data_facts": "数据读取程序对读取方式的说明，例如批次中填充所占的比例。",
    "status": "训练如何结束：valid（有效）、incomplete（未完成）、invalid（无效）或没有记录。"
    "未完成的训练没有到达终点，其数字只涵盖此前测到的部分。无效的结果不得使用：其损失不是有限值。"
    "没有记录的文件夹，属于仍在进行的训练，或在写出记录之前就已结束的训练。",
    "precision": "训练第一步的乘法实际用什么精度计算，由送往设备的运算中观察得到：fp32、tf32、bf16、fp16，"
    "或 amp-...（autocast 从 float32 权重降低而来）。若全部乘法中有四分之三用某一类型完成，且几乎没有更窄的类型，"
    "就以该类型命名。CPU 用 float32 内核模拟较窄类型时，以数值为准：因子只含窄类型能表示的数，即为窄类型的乘法。",
    "group": "同一次 --repeat 的各次训练所共有的标识。",
    "fingerprint": "在同类平台上要求进行相同训练的两次运行，其指纹相同。",
}

DOUBTS = {
    "incomplete": "训练没有到达终点：数字只涵盖此前测到的部分。",
    "generated-data": "数据由 trainmark 生成：速度是真实的，但精度只能说明训练能够进行。请用 --data 给出真实数据集。",
    "stand-in": "运行在替身设备上；它不是真实设备，只用来展示训练在设备上会怎样进行：其速度、显存和功耗没有意义。",
    "init-from": "训练从给定的权重而不是随机权重开始：达标时间不等于从头训练的达标时间。",
    "target-missed": "完整训练结束时没有达到配方要求的精度。",
    "few-steps": "p_core 的误差尚未达到 ±1 %；文字中说明还需要多少步。",
    "drifting": "从第一步到最后一步，速度变慢或变快超过 2 %：可能是发热、缓存写满或其他负载。"
    "若各步的样本量不同，先扣除由此造成的部分。",
    "rank-skew": "最慢的 rank 自身的计算比最快的多用 5 % 以上的时间，且不是因为样本更多；文字中指出是哪一个。"
    "梯度通信不计在内，因为快的 rank 在其中等待慢的，使各 rank 的整步时间都一样长。",
    "small-batch": "全局 batch 小于 reference 配方的值，设备可能没有被充分利用。",
    "emulated-precision": "处理器没有所要求精度的指令。",
    "precision-differs": "观察了第一步的运算，与所要求的精度不符；文字中说明实际运行的精度，以及各类型的乘法各有多少。"
    "表格中的标注以实际运行为准。使用 --strict 时结果无效。",
    "skipped-steps": "因梯度不是有限值，损失缩放器跳过了超过 1 % 的步；开始阶段寻找缩放值时跳过几步是正常的。",
    "mfu-above-100": "每秒完成的 FLOPs 超过了设备在所要求精度下的峰值：要么实际运行的精度比标注的更窄，要么峰值有误；"
    "文字中说明峰值的来源。",
    "foreign-load": "训练期间其他程序或宿主机上的其他虚拟机占用了超过 10 % 的机器。",
    "sampler-ended": "对设备和主机采样的进程先于训练结束。训练不受影响，但此后的功耗、温度、内存和外来负载不得而知。",
    "power-sampling": "功耗所依据的采样不足 60 个、每秒不到一个，或有超过 2 s 的间断：达不到 MLPerf 的要求。",
    "throttled": "有设备报告自己因过热或功耗上限而减速；文字中说明频度和原因。",
    "ecc-errors": "训练期间某设备的内存出现了无法纠正的错误：结果可能有误，应检查该设备。",
    "skip-bad": "允许跳过无法读取的数据文件；被跳过的文件列在记录中。",
    "torn-events": "某个 rank 的事件文件在一行中间中断：该行的内容不计入。",
    "no-sample": "训练好的模型本应留下可供查看或试听的文件，但没有做到；测得的结果不受影响。",
    "resumed": "训练从检查点继续：时间只涵盖此后的部分。",
    "restarted": "有 rank 中途退出，并从最新的检查点重新启动；文字中说明发生在哪里、损失了多少时间。"
    "e2e_time 包含这段时间，吞吐不包含。",
    "no-end": "用于 `trainmark speak`：在网络给出结束信号之前已达到帧数上限。",
    "no-sound": "用于 `trainmark speak`：网络在第一帧就结束了。",
    "weak-attention": "用于 `trainmark speak`：注意力没有沿着文本朗读，读出的词多半不对。",
    "long-text": "用于 `trainmark speak`：有一句比 LJSpeech 中的任何一句都长，而这类网络正是用它训练的。",
    "untrained": "用于 `trainmark speak`：权重来自一个连一批数据都没有见过的网络。",
}
"""By the code programs read on the record: what such a doubt means. A record's own sentence, with its numbers, is in
English."""

CHECKS = {
    "document": "文件中没有记录以外的内容，也没有前后两处说法不一",
    "name": "训练的标识、日期与计划一致",
    "plan": "计划中的词语都存在，指纹与其要求的内容一致",
    "workload": "计数单位、数据集和精度指标都是该负载自己的",
    "deviations": "标明与 reference 配方不同之处，确实如所标明的那样不同",
    "ranks": "记录中的 rank 与拓扑要求的一致",
    "lengths": "每个 rank 的每条曲线每步都有一个值",
    "durations": "每段时长都是整数纳秒，非负且合理",
    "items": "每一步训练的样本量与计划的 batch 相符",
    "loss": "每一步都有有限的损失值",
    "warm-up": "预热部分与曲线自身所示一致",
    "phases": "各阶段是曲线之和，其总和等于 e2e_time",
    "one-clock": "同一主机上的各 rank 同时结束",
    "restarts": "重启次数与因此损失的时间一致",
    "metrics": "每个指标及其置信区间都能由曲线重新算出",
    "completed": "完成比例对应整数的计划步数",
    "time-to-target": "达标时间与达到目标的那次评估相符",
    "quality": "精度取自最后一次评估，并按配方的目标判定",
    "evaluations": "各次评估依次进行，所评样本相同",
    "scores": "每个得分都是这些样本可能得到的",
    "ending": "状态、结束原因与步数一致",
    "leftovers": "数字之外列出的内容属于本次训练",
    "sample-clock": "采样按时间先后排列，每次一个值",
    "sample-gaps": "采样频率与采样进程所说的一致",
    "one-reading": "同一次读数的各条曲线时间一致",
    "machines": "被采样的机器就是各 rank 所在的机器，且在训练期间",
    "power-samples": "功耗采样及其间断的计数正确",
    "sensed": "功耗、能耗、温度和内存都能由采样算出",
    "foreign-load": "外来负载与主机的采样相符",
    "precision": "实际运行的精度，就是第一步乘法所用的精度",
    "peak": "峰值是该卡在所要求精度下的峰值",
    "memory": "没有 rank 占用超过现有的内存",
    "links": "链路速度能由消息大小和时间算出",
    "fill": "搜索得到的 batch 就是训练所用的 batch",
    "machine": "机器具备训练所用到的资源",
    "doubts": "数字所要求的疑点都在记录中，数值相符，且没有多余的疑点",
}
"""By the code of a check on a record: what it holds to be true of an honest result."""

REASONS = {
    "it was not measured": "没有测量",
    "no step was counted": "没有计入统计的步",
    "FLOPs are counted after the last step, which was not reached": "FLOPs 在最后一步之后计数，而训练没有到达那里",
    "the platform reports no memory": "平台不报告内存",
    "the target was not reached": "没有达到目标",
    "the run's length is open": "训练长度未定",
    "the run has one rank": "训练只有一个 rank",
    "the exchange was not measured": "没有测量通信",
    "nothing was sampled during the run": "训练期间没有采样",
    "the result is not valid": "结果无效",
}
"""Why a metric has no value, by the sentence on the record; what a sensor itself said is in English."""
